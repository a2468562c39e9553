"""Draw matrices of similarities as maps: mini-batches, layers and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from limbeck.analysis.record import TOKEN_NORMS
from limbeck.report.data import StudentData, TaskData
from limbeck.report.drawing import CELL, ReportFigure
from limbeck.report.layout import (
    COLOURS,
    DASH,
    Room,
    bar_of_colours,
    in_parts,
    panels,
    part_of,
    short,
    stem,
    task_figure,
)

_MOST_PANELS = 12  # of one figure, which then fits on a printed page
_MOST_NUMBERS = 13  # rows and columns of a map with a number in every cell
_MOST_TOKENS = 30  # more are named in part
_NORM_NAMES = {"none": "no norm", "l2": "l2 norm", "layernorm": "layer norm", "softmax": "softmax"}
_FOOT = 0.75


class _Map(NamedTuple):
    title: str
    values: np.ndarray


class _Row(NamedTuple):
    label: str
    maps: dict[str, np.ndarray]  # by norm


def heat_maps(task: TaskData) -> list[ReportFigure]:
    """Draw CKA of the teacher's mini-batches with each model's."""
    teacher = next(
        (found for student in task.students if (found := student.array("heat_map.teacher")) is not None), None
    )
    maps = [_Map(f"teacher {DASH} teacher", teacher)] if teacher is not None else []
    maps += [_Map(f"teacher {DASH} {name}", values) for name, values in _befores(task, "heat_map.before")]
    maps += [_Map(f"teacher {DASH} {short(s.label)}", values) for s, values in _each(task, "heat_map.after")]
    low, high = _range([found.values for found in maps])
    drawn = []
    for number, part in enumerate(in_parts(maps, _MOST_PANELS), start=1):
        figure, grid = panels(len(part), 1.75, 1.75, Room(0.6, 0.1, 0.3, 0.7), foot=_FOOT)
        for axes, found in zip(grid, part, strict=True):
            image = _show(axes, found, low, high)
            axes.set_xlabel(f"mini-batch of the other model\nmean of the diagonal {_diagonal(found.values):.2f}")
            axes.set_ylabel("mini-batch of the teacher")
        bar_of_colours(figure, image, f"CKA, from {low:.2f} to {high:.2f}", _FOOT)
        words = [f"{found.title} {_diagonal(found.values):.2f}" for found in part]
        drawn.append(
            task_figure(
                task.task,
                "heat maps",
                "CKA of mini-batches",
                caption=(
                    "CKA of the teacher's representation of one mini-batch and the other model's of another; on the "
                    "diagonal both saw the same examples, and a bright diagonal means that the teacher's structure was "
                    "taken over. One scale of colours for all. The first measured seed of each method."
                ),
                alt=f"Heat maps of CKA on {task.task}. Means of the diagonals: {'; '.join(words)}.",
                part=number,
                figure=figure,
            )
        )
    return drawn


def layer_maps(task: TaskData) -> list[ReportFigure]:
    """Draw teacher against student, before and after; then each student before against after."""
    beside = [_Map(name, values) for name, values in _befores(task, "layers.before")]
    beside += [_Map(short(student.label), values) for student, values in _each(task, "layers.after")]
    own = [_Map(short(student.label), values) for student, values in _each(task, "layers.students")]
    caption = (
        "CKA of every layer of the teacher with every layer of the student before training and after it with each "
        "method; layer 0 is the output of the embeddings."
    )
    own_caption = (
        "CKA of every layer of the student before training with every layer after it: what training changed. Layer 0 "
        "is the output of the embeddings."
    )
    return [
        *_layer_maps(
            task,
            beside,
            "layers",
            "Layers of teacher and student",
            ("layer of the student", "layer of the teacher"),
            caption,
        ),
        *_layer_maps(
            task, own, "layers-students", "Layers before and after", ("layer after", "layer before"), own_caption
        ),
    ]


def token_maps(task: TaskData) -> list[ReportFigure]:
    """Draw a grid for each sentence: the teacher and each student by the four norms."""
    drawn = []
    for number, sentence in enumerate(_sentences(task)):
        names = [short(str(token), 0.9) for token in sentence["tokens"]]
        teacher, students = _token_rows(task, number, str(sentence["text"]))
        ranges = {
            norm: _range([row.maps[norm] for row in [*teacher, *students] if norm in row.maps]) for norm in TOKEN_NORMS
        }
        for part, some in enumerate(in_parts(students, 5), start=1):
            name = stem("tokens", task.task, str(number + 1), *([str(part)] if part > 1 else []))
            title = f"Relations of tokens, {task.task}, sentence {number + 1}{part_of(part)}"
            drawn.append(_token_maps(task.task, name, title, sentence["text"], names, [*teacher, *some], ranges))
    return drawn


def _befores(task: TaskData, name: str) -> list[tuple[str, np.ndarray]]:
    """Find the student before training: once, unless methods began from different ones."""
    found = _each(task, name)
    different: list[tuple[StudentData, np.ndarray]] = []
    for student, values in found:
        if not any(values.shape == v.shape and np.allclose(values, v, atol=1e-3, equal_nan=True) for _, v in different):
            different.append((student, values))
    if len(different) == 1:
        return [("student before", different[0][1])]
    return [(f"{short(student.label, 1.4)} before", values) for student, values in different]


def _each(task: TaskData, name: str) -> list[tuple[StudentData, np.ndarray]]:
    found = [(student, student.array(name)) for student in task.students]
    return [(student, values) for student, values in found if values is not None and values.size]


def _range(maps: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([np.ravel(found) for found in maps]) if maps else np.zeros(1)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return low, high if high > low else low + 1e-6


def _diagonal(values: np.ndarray) -> float:
    return float(np.nanmean(np.diag(values))) if np.isfinite(np.diag(values)).any() else float("nan")


def _show(axes: Any, found: _Map, low: float, high: float) -> Any:
    image = axes.imshow(np.asarray(found.values, dtype=float), vmin=low, vmax=high, aspect="auto")
    axes.set_title(short(found.title, 1.8), loc="left")
    axes.locator_params(nbins=6, integer=True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _layer_maps(
    task: TaskData, maps: Sequence[_Map], name: str, title: str, labels: tuple[str, str], caption: str
) -> list[ReportFigure]:
    low, high = _range([found.values for found in maps])
    across, down = labels
    drawn = []
    for number, part in enumerate(in_parts(maps, 8), start=1):
        rows = max(found.values.shape[0] for found in part)
        figure, grid = panels(
            len(part), 1.95, max(1.5, min(2.6, 0.4 + 0.19 * rows)), Room(0.5, 0.1, 0.3, 0.5), foot=_FOOT
        )
        for axes, found in zip(grid, part, strict=True):
            image = _show(axes, found, low, high)
            axes.set_xlabel(across)
            axes.set_ylabel(down)
            if max(found.values.shape) <= _MOST_NUMBERS:
                _number_cells(axes, found.values, image)
        bar_of_colours(figure, image, f"CKA, from {low:.2f} to {high:.2f}", _FOOT)
        words = [f"{found.title} {float(found.values[-1, -1]):.2f}" for found in part]
        drawn.append(
            task_figure(
                task.task,
                "layers",
                title,
                name=name,
                part=number,
                caption=f"{caption} The first measured seed of each method.",
                alt=f"Maps of CKA between layers on {task.task}. Of the last layers: {', '.join(words)}.",
                figure=figure,
            )
        )
    return drawn


def _number_cells(axes: Any, values: np.ndarray, image: Any) -> None:
    rows, columns = values.shape
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows))
    size = min(7.0, 1.95 * 72 / columns / 2.5)
    for (row, column), value in np.ndenumerate(values):
        text = f"{value:.2f}".replace("0.", ".", 1) if np.isfinite(value) else DASH
        colour = "#000000" if _luminance(image.to_rgba(value)[:3]) > 0.18 else "#ffffff"
        how = {"ha": "center", "va": "center", "size": size, "color": colour}
        axes.text(column, row, text, gid=f"{CELL}{axes.figure.axes.index(axes)}-{row}-{column}", **how)


def _luminance(colour: Sequence[float]) -> float:
    """Compute it as the accessibility guidelines do; black and white are equally readable on 0.18."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def _sentences(task: TaskData) -> list[dict[str, Any]]:
    """List those of the first record; others show the same ones, or are left out of a sentence's grid."""
    records = [record for student in task.students for record in student.records]
    return next((list(record.values["sentences"]) for record in records if record.values.get("sentences")), [])


def _token_rows(task: TaskData, number: int, text: str) -> tuple[list[_Row], list[_Row]]:
    """Find the teacher's row, where there is one, and those of students that were shown the same sentence."""
    rows: dict[str, list[_Row]] = {"teacher": [], "student": []}
    for student in task.students:
        for record in student.records[:1]:
            sentences = record.values.get("sentences") or []
            if len(sentences) <= number or sentences[number]["text"] != text:
                continue
            for model, label in (("teacher", "teacher"), ("student", short(student.label, 1.2))):
                places = {norm: f"tokens.{number}.{model}.{norm}" for norm in TOKEN_NORMS}
                maps = {norm: record.arrays[name] for norm, name in places.items() if name in record.arrays}
                rows[model] += [_Row(label, maps)] if maps else []
    return rows["teacher"][:1], rows["student"]


def _token_maps(
    task: str,
    name: str,
    title: str,
    text: str,
    names: Sequence[str],
    rows: Sequence[_Row],
    ranges: Mapping[str, tuple[float, float]],
) -> ReportFigure:
    side = 1.75
    longest = 0.07 * max(map(len, names), default=1) + 0.1
    room = Room(0.25 + longest, 0.2, 0.28, 0.25 + longest)
    figure, grid = panels(len(TOKEN_NORMS) * len(rows), side, side, room, foot=0.5, columns=len(TOKEN_NORMS))
    every = max(1, -(-len(names) // _MOST_TOKENS))
    size = max(4.0, min(7.0, 0.9 * every * side * 72 / max(len(names), 1)))
    for place, axes in enumerate(grid):
        row, norm = rows[place // len(TOKEN_NORMS)], TOKEN_NORMS[place % len(TOKEN_NORMS)]
        values = row.maps.get(norm, np.full((len(names), len(names)), np.nan))
        image = _show(axes, _Map(f"{row.label}, {_NORM_NAMES[norm]}", values), *ranges[norm])
        axes.set_xticks(range(0, len(names), every), names[::every], rotation=90, fontsize=size)
        axes.set_yticks(range(0, len(names), every), names[::every], fontsize=size)
        axes.set_xlabel("token")
        axes.set_ylabel("token")
        if place < len(TOKEN_NORMS):
            _bar_of_column(figure, axes, image)
    others = [f"{row.label} {_others(row.maps['softmax']):.3f}" for row in rows if "softmax" in row.maps]
    words = f" Mean off the diagonal with softmax: {', '.join(others)}." if others else ""
    return ReportFigure(
        name=name,
        title=title,
        caption=(
            f"Relations between the tokens of “{text}”, by four norms: the teacher above, a student in each row below. "
            "Each norm has its own scale of colours, shared by all models. The first measured seed of each method."
        ),
        alt=f"Relations between {len(names)} tokens of one sentence for {', '.join(row.label for row in rows)}.{words}",
        task=task,
        kind="tokens",
        figure=figure,
    )


def _others(values: np.ndarray) -> float:
    off = ~np.eye(len(values), dtype=bool)
    return float(np.nanmean(values[off])) if off.any() else float("nan")


def _bar_of_column(figure: Any, axes: Any, image: Any) -> None:
    _, height = figure.get_size_inches()
    box = axes.get_position()
    cax = figure.add_axes((box.x0, 0.38 / height, box.width, 0.09 / height), label=COLOURS)
    figure.colorbar(image, cax=cax, orientation="horizontal", label="relation").locator.set_params(nbins=4)
