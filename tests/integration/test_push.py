"""Put students on a stand-in of the hub, and read back what was written there."""

from __future__ import annotations

import json

import pytest
from helpers.hub_stand_in import TOKEN, hub_stand_in
from helpers.saved_runs import read_json
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck._internal import hub

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture()
def stand_in(monkeypatch):
    import huggingface_hub.constants

    with hub_stand_in() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        hub.connection_problem.cache_clear()
        yield found
    hub.connection_problem.cache_clear()


def write(files, folder):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_a_run(run, stand_in, command, tmp_path):
    source = run("kd")
    code, said = command("push", source, "you/small", "--private", "--licence", "mit")
    assert code == 0 and f"{stand_in.address}/you/small" in said, said
    assert stand_in.made["you/small"]["visibility"] == "private"
    assert stand_in.messages == ["small, exported by limbeck"]
    write(stand_in.files, tmp_path / "back")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "back")
    student = AutoModelForSequenceClassification.from_pretrained(source / "student")
    assert all(ours.equal(theirs) for ours, theirs in zip(model.parameters(), student.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab()
    card = (tmp_path / "back" / "README.md").read_text()
    assert "license: mit" in card and "# small" in card
    assert read_json(tmp_path / "back" / "metrics.json") == read_json(source / "metrics.json")
    assert not any(TOKEN.encode() in content for content in stand_in.files.values())
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_an_export_as_it_is(run, stand_in, command, tmp_path):
    source = run("kd")
    assert command("export", source, "-o", "out")[0] == 0
    code, said = command("push", "out", "you/other", "--message", "second try")
    assert code == 0, said
    assert stand_in.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert stand_in.messages == ["second try"] and "visibility" not in stand_in.made["you/other"]


@pytest.mark.parametrize(
    ("refusal", "said_then"),
    [
        ((403, "You don't have the rights to create a model under the namespace you"), "the right to write"),
        ((401, "Invalid username or password."), "hf auth login"),
        ((500, "Internal error"), "Internal error"),
    ],
    ids=["rights", "token", "server"],
)
def test_a_refusal_is_one_message(refusal, said_then, run, stand_in, command, tmp_path):
    assert command("export", run("kd"), "-o", "out")[0] == 0
    stand_in.refuse = refusal
    code, said = command("push", "out", "you/small")
    assert code != 0 and said_then in said and refusal[1].rstrip(".") in said and TOKEN not in said, said


class TestBeforeAnyWork:
    def test_no_token(self, run, stand_in, command, monkeypatch, tmp_path):
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
        code, said = command("push", run("kd"), "you/small")
        assert code != 0 and "hf auth login" in said and not stand_in.made

    def test_a_name_that_is_none(self, run, stand_in, command):
        code, said = command("push", run("kd"), "you/small/again")
        assert code != 0 and "is no name for a repository" in said and not stand_in.made

    def test_offline(self, run, command):
        hub.connection_problem.cache_clear()
        code, said = command("push", run("kd"), "you/small")
        assert code != 0 and "offline" in said and "limbeck export" in said


def test_the_help_shows_examples(command):
    code, said = command("push", "--help")
    assert code == 0 and "you/rte-small" in said and "HF_TOKEN" in said
    assert json.dumps(TOKEN) not in said
