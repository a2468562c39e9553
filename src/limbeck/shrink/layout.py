"""Name the files and folders that `limbeck shrink` leaves behind, and find among them what it proposes to serve."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from limbeck.errors import RunError
from limbeck.runs.files import COPY_AGAIN, MALFORMED, read_mapping
from limbeck.runtime.folder import find_onnx

SUMMARY, PLAN, DATA, STUDENTS = "summary.json", "plan.json", "data", "students"
TEACHER = "teacher"
INT8 = "onnx-int8"
FORMS = {"hf": "model", INT8: INT8}  # with the names of their folders


class Proposed(NamedTuple):
    """Point to the proposed student, to its teacher in the form that is asked fastest, and to the student's run."""

    student: Path
    teacher: Path
    run: Path
    name: str  # of the student


def find_proposed(folder: str | Path) -> Proposed | None:
    """Return what a folder of `limbeck shrink` proposes; None where it is another folder."""
    path = Path(folder)
    if not ((path / SUMMARY).is_file() and (path / PLAN).is_file()):
        return None
    summary = read_mapping(path / SUMMARY)
    try:
        student = path / summary["chosen"]["folder"]
        depth = next(model["depth"] for model in summary["models"] if model["name"] == summary["chosen"]["name"])
        run = path / summary["students"][str(depth)]["run"]
    except (*MALFORMED, StopIteration) as error:
        raise RunError(f"{path / SUMMARY} does not say what is proposed ({error}). {COPY_AGAIN}") from error
    forms = [path / STUDENTS / TEACHER / name for name in FORMS.values()]
    found = [form for form in forms if find_onnx(form) is not None] or [form for form in forms if form.is_dir()]
    if not student.is_dir() or not found:
        raise RunError(f"{path} proposes {student}, which is not there, or its teacher is not. {COPY_AGAIN}")
    return Proposed(student, found[0], run, f"{path.resolve().name}, {summary['chosen']['name']}")
