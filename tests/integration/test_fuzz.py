"""Give the command inputs that are almost right: each ends well, or with one clear message.

``LIMBECK_FUZZ=5000`` runs so many of them, other ones each time (``make test-all``: 500); without it 150, always the
same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.fuzzed_inputs import FAMILY, NOT_HERE, RECIPES, STUDY, command_lines, recipe_files
from helpers.fuzzed_tables import tables
from helpers.user_folder import Desk
from helpers.watched_commands import Outcome
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

INPUTS = int(os.environ.get("LIMBECK_FUZZ", "150"))
LONGEST_MESSAGE = 2_000  # characters
STEP = ["train.max_steps=1", "train.save_strategy=no"]
# folders and files that commands write unless they are told otherwise
OUTPUTS = ("out", "runs", "studies", "analysis", "predictions.csv", "report.html")


def inputs(share: float) -> settings:
    return settings(
        max_examples=round(share * INPUTS),
        derandomize="LIMBECK_FUZZ" not in os.environ,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a smaller example would cost as long again
    )


class Judge(Desk):
    """Say what must not be about a command, and put everything back as it was."""

    def wrong_with(self, words: Sequence[str], outputs: Sequence[str]) -> str:
        """Do it; return what must not be about it, or nothing."""
        outcome = self("--quiet", *words)
        found = _wrong_end(outcome, words) or self._wrong_files(outcome, outputs)
        if outcome.changed:
            self.clear()
        return f"{found}\nlimbeck {words}\n{outcome.err[-3000:]}" if found else ""

    def _wrong_files(self, outcome: Outcome, outputs: Sequence[str]) -> str:
        allowed = [self.work / name for name in outputs]
        for path in outcome.changed | outcome.touched:
            if path not in outcome.changed and self._is_temporary(path, allowed):
                continue
            if not any(path.is_relative_to(place) or place.is_relative_to(path) for place in allowed):
                return f"{path} was written"
        new = [path for path in outcome.changed if path.exists()]
        if outcome.status and any(path.name.startswith(".") and path.name != ".lock" for path in new):
            return f"half-written: {new}"
        if outcome.status and any(path.is_file() for path in new):
            return f"failed, but wrote {sorted(map(str, new))}"
        return ""

    def _is_temporary(self, path: Path, allowed: Sequence[Path]) -> bool:
        """Say whether it is gone again, and was where temporary files are or beside what it became."""
        beside = path.name.startswith(".") and any(path.parent == place.parent for place in allowed)
        return beside or path.is_relative_to(self.temporary)


def _wrong_end(outcome: Outcome, words: Sequence[str]) -> str:
    if outcome.escaped is not None:
        return f"escaped: {outcome.escaped!r}"
    if "Traceback" in outcome.err:
        return "a traceback"
    if outcome.status == 0:
        return ""
    if not outcome.err.startswith(("Error: ", "Usage: ", "╭─ Error")):
        return "no message, or others before it"
    if outcome.err.count("\nError: "):
        return "more than one message"
    quoted = 0 if outcome.err.startswith("Error: ") else 2 * sum(map(len, words))  # typer repeats what it was given
    if not 10 < len(outcome.message) <= LONGEST_MESSAGE + quoted:
        return f"a message of {len(outcome.message)} characters"
    return ""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Judge:
    return Judge(tmp_path_factory.mktemp("fuzz"), teacher_folder)


def try_recipe(desk: Judge, content: bytes, how: str) -> str:
    (desk.work / "in" / "fuzzed.yaml").write_bytes(content)
    words = {
        "validate": ["validate", "in/fuzzed.yaml"],
        "row": ["validate", "in/fuzzed.yaml/a"],
        "distill": ["distill", "in/fuzzed.yaml", "-o", "out", *STEP],
        "study": ["study", "in/fuzzed.yaml", "-o", "out", "--dry-run"],
    }
    return desk.wrong_with(words[how], ["out"])


def try_table(desk: Judge, ending: str, content: bytes, how: str) -> str:
    file = f"in/fuzzed.{ending}"
    (desk.work / file).write_bytes(content)
    columns = ["task.text=text", "task.label=label"]
    words = {
        "profile": ["profile", "table", f"task.train={file}", *columns, "--model", "in/teacher"],
        "predict": ["predict", "in/teacher", file, "--text", "text", "-o", "out/p.csv"],
        "distill": ["distill", "in/recipe.yaml", f"task.train={file}", "-o", "out"],
        "validation": ["distill", "in/recipe.yaml", f"task.validation={file}", "-o", "out"],
        "text": [
            "distill",
            "in/recipe.yaml",
            f"task={{name: text, train: {file}, text: text}}",
            "method.name=minilmv2",
        ],
    }
    found = desk.wrong_with(words[how], ["out", "runs"])
    (desk.work / file).unlink(missing_ok=True)
    return found


def try_words(desk: Judge, words: list[str]) -> str:
    if any(part in word for word in words for part in NOT_HERE):
        return ""
    named = [words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-o", "--output", "--submission")]
    named += [word.partition("=")[2] for word in words if word.startswith(("--output=", "teacher.cache="))]
    return desk.wrong_with(words, [*OUTPUTS, *(name for name in named if len(name) < 200)])


@inputs(0.4)
@given(
    st.one_of(
        st.tuples(recipe_files(RECIPES), st.just("validate")),
        st.tuples(recipe_files(RECIPES), st.just("distill")),
        st.tuples(recipe_files([FAMILY]), st.just("row")),
        st.tuples(recipe_files([STUDY]), st.just("study")),
    )
)
def test_recipes(desk: Judge, case: tuple[bytes, str]) -> None:
    assert not (found := try_recipe(desk, *case)), found


@inputs(0.3)
@given(tables(), st.sampled_from(["profile", "profile", "predict", "predict", "distill", "validation", "text"]))
def test_tables(desk: Judge, table: tuple[str, bytes], how: str) -> None:
    assert not (found := try_table(desk, *table, how)), found


@inputs(0.3)
@given(command_lines())
def test_command_lines(desk: Judge, words: list[str]) -> None:
    assert not (found := try_words(desk, words)), found
