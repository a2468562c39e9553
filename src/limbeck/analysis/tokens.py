"""Relate the tokens of a sentence in teacher and student (Huang et al. 2023, figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from limbeck.analysis.geometry_pass import View
from limbeck.analysis.loaded_run import LoadedRun
from limbeck.analysis.record import TOKEN_NORMS
from limbeck.inference.relation_difference import Layer
from limbeck.models.capture import Capture
from limbeck.models.features import Wanted
from limbeck.similarity import token_relations

_SHOWN = 2  # sentences of the data, where none are chosen
_TOKENS = 16  # about what is still readable


def relations_of(
    loaded: LoadedRun, sentences: Sequence[str], layer: Layer
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return the sentences with their tokens, and the (L, L) relations of each under every normalisation, by name."""
    models = {"student": loaded.after}
    if loaded.parts.teacher is not None:
        models = {"teacher": loaded.parts.teacher.to(loaded.device).eval(), **models}
    shown, arrays = [], {}
    for number, row in enumerate(_rows(loaded, sentences)):
        batch = {name: torch.tensor([value], device=loaded.device) for name, value in row.items()}
        tokens = loaded.parts.tokenizer.convert_ids_to_tokens(row["input_ids"])
        shown.append(
            {"text": loaded.parts.tokenizer.decode(row["input_ids"], skip_special_tokens=True), "tokens": tokens}
        )
        for side, model in models.items():
            place = View.of(model, "mean", layer).layer
            with torch.no_grad():
                _, features = Capture(model)(batch, Wanted(hidden=[place]))
            for norm in TOKEN_NORMS:
                related = token_relations(features.hidden[place], features.mask, norm)[0]
                arrays[f"tokens.{number}.{side}.{norm}"] = related.float().cpu().numpy()
    return shown, arrays


def _rows(loaded: LoadedRun, sentences: Sequence[str]) -> list[dict[str, list[int]]]:
    """Encode the chosen sentences; without any, take examples that are about as long as is readable."""
    if sentences:
        limit = loaded.parts.max_length
        encoded = [dict(loaded.parts.tokenizer(text, truncation=True, max_length=limit)) for text in sentences]
    else:
        rows = [row for row, _ in zip(loaded.data.splits["validation"], range(1000), strict=False)]
        encoded = sorted(rows, key=lambda row: abs(len(row["input_ids"]) - _TOKENS))[:_SHOWN]
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [{name: list(row[name]) for name in names if name in row} for row in encoded]
