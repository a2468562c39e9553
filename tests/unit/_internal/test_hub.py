from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from limbeck._internal import hub


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub.connection_problem.cache_clear()
    yield
    hub.connection_problem.cache_clear()


def test_offline_by_choice(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in hub.connection_problem()


def test_unreachable_is_asked_once_and_switches_to_the_cache(monkeypatch):
    import datasets
    import huggingface_hub

    asked = []

    def refuse(request, timeout):
        asked.append(request.full_url)
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.invalid")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    assert "https://mirror.invalid is not reachable: no route" in hub.connection_problem()
    hub.use_cache_only_if_offline()
    assert asked == ["https://mirror.invalid"]
    assert huggingface_hub.constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE


def test_any_answer_means_reachable(monkeypatch):
    def answer(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 405, "not allowed", None, None)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert hub.connection_problem() == ""


def test_a_password_in_the_address_is_not_shown(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@127.0.0.1:9")
    assert "127.0.0.1:9 is not reachable" in hub.connection_problem() and "secret" not in hub.connection_problem()
