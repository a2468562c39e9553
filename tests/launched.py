"""What a launched process does in tests: train recipes, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck import execute, load_recipe


def train(recipes: dict[str, dict[str, Any]], home: Path) -> None:
    for name, values in recipes.items():
        execute(load_recipe(values=values), home / name, show_data=False)
