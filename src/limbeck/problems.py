"""Name the kinds of problem that a task can pose, and what their labels look like."""

from __future__ import annotations

from typing import Literal

# tokens, language_model: a decision for each token; labels are (B, L) with IGNORED where nothing is decided
# span: where an answer starts and ends; labels are (B, 2), positions in the row
Problem = Literal["classification", "regression", "multi_label", "tokens", "span", "language_model"]
PER_TOKEN = ("tokens", "language_model")
IGNORED = -100  # of a token: nothing is decided there; of an example: its class is not known (numbers: NaN)
UNKNOWN = -101  # of a token: something is decided there, but what is right is not known
