"""Provide what the whole suite shares: a tokenizer, a table, a teacher, and commands in this or another process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may wait for a network
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["LIMBECK_PRECISION"] = "float32"  # tests expect digits, on whatever machine
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job ignores Ctrl-C, and so would the commands that tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)

from helpers.in_process import run_command
from helpers.remembered import forget
from helpers.tiny_models import VOCAB, tiny_model
from helpers.tiny_tables import WORDS, sentences, write_csv
from transformers import AutoModelForMaskedLM, AutoTokenizer

from limbeck.models.vocabulary import make_wordpiece


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """Forget what earlier tests computed: each makes errors happen, or counts, where something is computed."""
    forget()


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "words"
    make_wordpiece([" ".join(WORDS)], folder, vocab_size=VOCAB)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def table_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    return write_csv(folder / "train.csv", sentences(96)), write_csv(folder / "dev.csv", sentences(40, seed=1))


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """Save a 4-layer BERT with a head for the labels of ``sentences`` as a plain checkpoint."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    model = tiny_model("bert", depth=4)
    model.config.id2label = {0: "negative", 1: "positive"}
    model.config.label2id = {"negative": 0, "positive": 1}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("".join(text + "\n" for text, _ in sentences(600, seed=7)))
    return path


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """Save a 4-layer BERT with a head for masked tokens."""
    folder = tmp_path_factory.mktemp("models") / "lm"
    AutoModelForMaskedLM.from_config(tiny_model("bert", depth=4).config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """Keep what is in memory out of the full garbage collection that ends every training, and takes longer than it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture()
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run a command in this process and an empty folder; return its exit code and what it said, in one line.

    Importing torch and transformers takes another process longer than most commands: take this one, and ``limbeck``
    where the process itself is tested.
    """
    monkeypatch.chdir(tmp_path)
    return run_command


@pytest.fixture()
def limbeck(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed command in a process of its own and an empty folder, as a user would."""

    def run(*words: Any, check: bool = True, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "limbeck", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=300,
            env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            assert done.returncode != 0, done.stdout + done.stderr
            assert "Traceback" not in done.stderr, done.stderr
        return done

    return run
