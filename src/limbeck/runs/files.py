"""Read files that may be damaged, with an error that names the file and says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck.errors import RunError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # what values of another shape may raise
COPY_AGAIN = "Copy it again or repeat the run."
_NOTHING = "\0 \n"  # a power cut leaves no bytes, or zeros, of what was not on the disk yet
_GLANCE = 4096


def is_empty(file: Path) -> bool:
    """Tell whether a file holds nothing, or begins with nothing but zeros."""
    with file.open("rb") as opened:
        return not opened.read(_GLANCE).strip(_NOTHING.encode())


def read_mapping(file: Path, what: str = "names and values") -> dict[str, Any]:
    """Read a JSON or YAML file of names and values; ``what`` tells in an error what it should hold."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        if not text.strip(_NOTHING):
            raise ValueError("it is empty")
        values = json.loads(text) if file.suffix == ".json" else plain_yaml.load(text)
        if not isinstance(values, dict):
            raise ValueError(f"it holds {str(values)[:40]!r}")
    except (ValueError, yaml.YAMLError) as error:
        raise damaged(file, what, error) from error
    return values


def damaged(file: Path, what: str, error: Exception) -> RunError:
    """Make the error that says that a file does not hold what it should."""
    seen = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
    return RunError(f"{file} does not hold {what}: {seen}. {COPY_AGAIN}")
