"""Tell the data and the teacher that a run was made with from those that are there now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory
from limbeck.runs.files import MALFORMED, damaged, read_mapping

_WHAT = "what a run knows of its data"
_KEYS = ("rows", "texts", "labels", "content")  # of a split


def read_data(run: RunDirectory) -> dict[str, Any] | None:
    """Read what a run knows of its data; None where it was made by a limbeck that did not write it down."""
    if not run.data.is_file():
        return None
    values = read_mapping(run.data, _WHAT)
    try:
        names, splits = values["labels"], values["splits"]
        return values | {
            "labels": [str(name) for name in names],
            "splits": {name: {key: split[key] for key in _KEYS} for name, split in splits.items()},
        }
    except MALFORMED as error:
        raise damaged(run.data, _WHAT, error) from error


def check_data(run: RunDirectory, now: Mapping[str, Any], remedy: str, *, ordered: bool = True) -> None:
    """Raise where a run was made with other data than ``now``, or with another teacher where ``now`` has one.

    Compared are the splits that both know; without ``ordered``, their rows may stand in another order.
    """
    before = read_data(run)
    different = data_differences(before, now, ordered=ordered) if before is not None else []
    if different:
        raise RunError(
            f"{run.path} was made with other data than there are now; what differs: {'; '.join(different)}. {remedy}"
        )


def data_differences(before: Mapping[str, Any], now: Mapping[str, Any], *, ordered: bool = True) -> list[str]:
    """List how two sets of data differ, in words."""
    found = []
    if before["labels"] != now["labels"]:
        found.append(f"the labels ({_names(before['labels'])} then, {_names(now['labels'])} now)")
    for name, split in now["splits"].items():
        if name in before["splits"]:
            found += [f"{name}: {what}" for what in _split_differences(before["splits"][name], split, ordered)]
    if before.get("teacher") and now.get("teacher") and before["teacher"] != now["teacher"]:
        found.append("the teacher's weights or config")
    if before.get("unlabelled") and now.get("unlabelled") and before["unlabelled"] != now["unlabelled"]:
        found.append("the rows without labels (task.unlabelled)")
    if before.get("vocabulary") and now.get("vocabulary") and before["vocabulary"] != now["vocabulary"]:
        found.append("the pieces that a trimmed vocabulary keeps (of the training texts, or of vocabulary_texts)")
    return found


def _split_differences(before: Mapping[str, Any], now: Mapping[str, Any], ordered: bool) -> list[str]:
    if before["content"] == now["content"]:
        moved = (before["texts"], before["labels"]) != (now["texts"], now["labels"])
        return ["the same rows in another order"] if ordered and moved else []
    if before["rows"] != now["rows"]:
        return [f"{before['rows']:,} rows then, {now['rows']:,} now"]
    same_texts, same_labels = before["texts"] == now["texts"], before["labels"] == now["labels"]
    return ["other labels" if same_texts else "other texts" if same_labels else "other texts and labels"]


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels[:8]) + (", …" if len(labels) > 8 else "") if labels else "none"
