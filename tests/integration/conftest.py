"""What tests that train many tiny models share."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.tiny_runs import TinyRuns


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """Every training ends with a full garbage collection, which takes longer than a few steps of a tiny model."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> TinyRuns:
    return TinyRuns(tmp_path_factory.mktemp("tiny"), tokenizer_folder)


@pytest.fixture()
def run(trained: TinyRuns, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a run, to be measured."""
    return lambda name: shutil.copytree(trained(name), tmp_path / name)
