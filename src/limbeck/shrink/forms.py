"""Export the students in the forms that they are served in, and time all models in one measurement."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from limbeck._internal.files import remove_leftovers
from limbeck._internal.progress import muted_messages
from limbeck.deploy.bench import BenchResult, bench
from limbeck.deploy.export import export
from limbeck.errors import ExportError, MissingExtra, ModelError
from limbeck.inference.latency import Timing, random_batch, time_in_turns
from limbeck.inference.served import load_served
from limbeck.shrink.data import REPORTED
from limbeck.shrink.layout import FORMS, INT8, TEACHER
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

BATCH_SIZES = (1, 32)
_SECONDS = 20.0
# what int8 may cost: a part of the score, or so many answers where rows are few; the summary tells what it does cost
_MAX_DROP, _MAX_ROWS = 0.02, 3


def student_name(depth: int, form: str = "hf") -> str:
    """Name a student in tables: ``3 layers``, ``3 layers, int8``."""
    layers = "1 layer" if depth == 1 else f"{depth} layers"
    return layers if form == "hf" else f"{layers}, int8"


def export_forms(
    runs: Mapping[int, Path], teacher: str, pieces_of: str | None, block: dict[str, Any], rows: int, output: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """Export teacher and students; return the folder of each model, by its name, and why some were refused.

    ``pieces_of`` is the model whose vocabulary they were trained without a part of, and get back. ``rows`` is the
    number of rows that choose, on which int8 may lose a few answers. The teacher's own int8 form is made too: where it
    is fast enough, nobody needs a student.
    """
    for folder in filter(Path.is_dir, (output, output / TEACHER, *(output / str(depth) for depth in runs))):
        remove_leftovers(folder)  # of an export that was killed
    found, refused = {TEACHER: Path(teacher)}, dict[str, str]()
    sources = {TEACHER: (TEACHER, Path(teacher))}
    sources |= {student_name(depth): (str(depth), run) for depth, run in runs.items()}
    wanted = [
        (f"{name}, int8" if form == INT8 else name, source, form, output / own / folder)
        for name, (own, source) in sources.items()
        for form, folder in FORMS.items()
    ]
    for name, source, form, folder in wanted:
        most = max(_MAX_DROP, _MAX_ROWS / rows)
        vocabulary = "compact" if form == INT8 else "whole"
        try:
            with muted_messages():
                export(
                    *(source, form, folder),
                    task=block,
                    max_drop=most,
                    vocabulary=vocabulary,
                    pieces_of=pieces_of,
                    force=True,
                )
        except MissingExtra as error:
            refused.setdefault("ONNX", str(error))
        except (ExportError, ModelError) as error:  # it would answer otherwise, or the family has no such form
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted call left is of another student
            logger.warning("%s: %s", name, error)
            refused[name] = str(error)
        else:
            found[name] = folder
    return found, refused


def time_forms(paths: Mapping[str, Path], length: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Time all models in turns; return figures by the models' names, and the conditions."""
    found = bench(
        list(paths.values()), batch_sizes=BATCH_SIZES, lengths=[length], seconds=_SECONDS, memory=False, device="cpu"
    )
    figures = {}
    for name, measured in zip(paths, found.models, strict=True):
        one, many = (measured.cell(size, length).timing for size in BATCH_SIZES)
        figures[name] = {
            "form": measured.form,
            "parameters": measured.parameters,
            "disk_bytes": measured.disk_bytes,
            "p50_ms": one.p50_ms,
            "p95_ms": one.p95_ms,
            "batch_ms": many.p50_ms,
        }
    return figures, _conditions(found)


def _conditions(found: BenchResult) -> dict[str, Any]:
    return {"processor": found.processor, "threads": found.threads, "versions": found.versions}


def time_rivals(
    rivals: Mapping[str, Callable[..., Any]], task: Task, teacher: Path, figures: Mapping[str, Any], length: int
) -> dict[str, dict[str, float]]:
    """Time models that take columns of texts, one reported text of middle length and 32 of them, in turns.

    The teacher takes its turn too: times are in its units, as :func:`time_forms` measured it.
    """
    rows = task.split(REPORTED)[:]
    columns = task.inputs(rows)
    middle = sorted(range(len(columns[0])), key=lambda row: sum(len(column[row]) for column in columns))
    served = load_served(teacher)
    found: dict[str, dict[str, float]] = {name: {} for name in rivals}
    for size, key in zip(BATCH_SIZES, ("p50_ms", "batch_ms"), strict=True):
        start = max(0, (len(middle) - size) // 2)
        texts = [[column[row] for row in middle[start : start + size]] for column in columns]
        calls = [partial(served.logits, random_batch(served, size, length))]
        calls += [partial(predict, *texts) for predict in rivals.values()]
        own, *others = (Timing.of(times, size).p50_ms for times in time_in_turns(calls, _SECONDS / 4))
        for name, milliseconds in zip(rivals, others, strict=True):
            found[name][key] = milliseconds * figures[key] / own
    return found
