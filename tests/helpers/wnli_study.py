"""Write a study on real WNLI with a model so small that a run takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from helpers.real_data import GLUE
from helpers.tiny_models import tiny_model
from limbeck import load_task
from limbeck.models.vocabulary import make_wordpiece


def write_wnli_study(
    folder: Path, train: dict[str, Any], *, weights: dict[str, Any] | None = None, **values: Any
) -> Path:
    """Write the model and study.yaml into ``folder``; ``weights`` changes the model, ``values`` say what is studied."""
    task = load_task("glue/wnli", data_dir=str(GLUE))
    some = task.split("train").select(range(500))
    make_wordpiece((text for column in task.text_columns for text in some[column]), folder / "model", 800)
    tiny_model("bert", depth=4, vocab_size=800, **(weights or {})).save_pretrained(folder / "model")
    study = {
        "tasks": ["glue/wnli"],
        "task": {"data_dir": str(GLUE), "max_length": 48},
        "teacher": {"model": str(folder / "model"), "train": train, "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": train,
        "rivals": False,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study | values, sort_keys=False))
    return folder / "study.yaml"
