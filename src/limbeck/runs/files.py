"""Read files that may be damaged, with an error that names the file and says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck.errors import RunError


def read_mapping(file: Path) -> dict[str, Any]:
    """Read a JSON or YAML file that holds names and values."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        values = json.loads(text) if file.suffix == ".json" else plain_yaml.load(text)
    except (ValueError, yaml.YAMLError) as error:
        seen = " ".join(str(error).split())
        raise RunError(f"{file} is damaged: {seen}. Copy it again or repeat the run.") from error
    if not isinstance(values, dict):
        raise RunError(f"{file} is damaged: it holds {str(values)[:40]!r}. Copy it again or repeat the run.")
    return values
