"""Train tiny models that several tests of a file share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny_runs import TinyRuns

from limbeck.analysis import latency


@pytest.fixture(autouse=True)
def short_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time models in as few turns as there may be."""
    monkeypatch.setattr(latency, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> TinyRuns:
    return TinyRuns(tmp_path_factory.mktemp("tiny"), tokenizer_folder)


@pytest.fixture()
def run(trained: TinyRuns, tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a run, to be measured."""
    return lambda name: shutil.copytree(trained(name), tmp_path / name)
