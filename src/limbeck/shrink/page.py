"""Write the summary for people: Markdown, and one page with the picture of score against time and size."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from limbeck._internal.files import readable_size, write_text
from limbeck.errors import MissingExtra
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.report.drawing import ReportFigure, style
from limbeck.report.page import page_environment
from limbeck.report.tradeoff import Mark, draw_marks
from limbeck.shrink.summary import ShrinkSummary, findings

logger = logging.getLogger("limbeck")

MARKDOWN, PAGE = "summary.md", "summary.html"
LOOKS = {"teacher": 0, "student": 1, "rival": 2}


def write_pages(summary: ShrinkSummary, output: Path) -> None:
    """Write the summary as Markdown and, where the libraries for it are there, as a page with its picture."""
    write_text(output / MARKDOWN, summary_page(summary))
    try:
        environment = page_environment()
        picture = front_figure(summary)
    except MissingExtra as error:
        logger.warning("%s is left out: %s", PAGE, error)
        return
    template = environment.from_string((resources.files("limbeck.shrink") / "summary.html").read_text(encoding="utf-8"))
    content = {
        "title": _title(summary),
        "findings": findings(summary),
        "picture": picture,
        "head": _head(summary),
        "rows": [_cells(summary, model) for model in summary["models"]],
        "chosen": summary["chosen"]["name"],
        "conditions": _conditions(summary),
    }
    write_text(output / PAGE, template.render(content))


def front_figure(summary: ShrinkSummary) -> ReportFigure:
    """Draw every model and rival: score against the time of one text, the size on disk as area."""
    marks = [
        Mark(
            model["name"],
            model["p50_ms"],
            model["score"]["value"],
            (model["score"]["low"], model["score"]["high"]),
            model.get("disk_bytes"),
            LOOKS[model["kind"]],
        )
        for model in summary["models"]
    ]
    caption = (
        f"The {summary['metric']} on rows that chose nothing, with its 95% interval, against the median latency of one "
        "text: best is high and to the left. The area of a marker grows with the size on disk, where there is a file."
    )
    across = f"one text of {summary['timed']['length']} tokens (ms, logarithmic)"
    with style():
        return draw_marks(
            marks, metric=summary["metric"], across=across, name="front", title="What is to be had", caption=caption
        )


def summary_page(summary: ShrinkSummary) -> str:
    """Return the summary as Markdown: sentences, a table of models, and how they were measured."""
    lines = [f"# {_title(summary)}", "", *(f"- {sentence}" for sentence in findings(summary)), ""]
    head = _head(summary)
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    chosen = summary["chosen"]["name"]
    for model in summary["models"]:
        cells = _cells(summary, model)
        if model["name"] == chosen:
            cells[0] = f"**{cells[0]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in _conditions(summary))]) + "\n"


def _title(summary: ShrinkSummary) -> str:
    asked = summary["asked"]
    return Path(asked["data"]).name + (f", within {asked['budget']}" if asked["budget"] else ": what is to be had")


def _head(summary: ShrinkSummary) -> list[str]:
    return ["model", summary["metric"], "agrees with teacher", "parameters", "disk", "one text", "32 texts"]


def _cells(summary: ShrinkSummary, model: Mapping[str, Any]) -> list[str]:
    agreement = "" if model["agreement"] is None else f"{100 * model['agreement']:.1f}%"
    disk = readable_size(model["disk_bytes"]) if "disk_bytes" in model else ""
    latency = f"{model['p50_ms']:.2f} ms ({model['latency_ratio']:.2f}x)"
    parameters = f"{model['parameters'] / 1e6:.2f} M"
    score = score_with_interval(summary["metric"], model["score"])
    return [model["name"], score, agreement, parameters, disk, latency, f"{model['batch_ms']:.1f} ms"]


def score_with_interval(metric: str, score: Mapping[str, float]) -> str:
    """Write a score with its interval: ``91.20 [89.9, 92.4]``."""
    hundred, digits = (1, 3) if metric in SMALLER_IS_BETTER else (100, 1)
    low, high = (f"{hundred * score[side]:.{digits}f}" for side in ("low", "high"))
    return f"{readable_score(metric, score['value'])} [{low}, {high}]"


def _conditions(summary: ShrinkSummary) -> list[str]:
    rows, timed, vocabulary, race = summary["rows"], summary["timed"], summary["vocabulary"], summary["race"]
    epochs = dict(zip(map(str, race["depths"]), race["epochs"], strict=True))
    students = "; ".join(
        f"{depth}: {', '.join(map(str, one['layers']))} of the teacher's, {epochs[depth]:g} epochs ({one['method']})"
        for depth, one in summary["students"].items()
    )
    return [
        f"{rows['train']:,} training rows. {rows['choosing']:,} others chose, and {rows['reported']:,} more, which "
        "chose nothing, give the scores (with 95% bootstrap intervals).",
        f"The teacher is {summary['teacher']['about']}. Always answering the most frequent label scores "
        f"{readable_score(summary['metric'], summary['majority'])}.",
        f"Students by layers: {students}. {race['candidates']} candidate{'s' * (race['candidates'] != 1)} of each "
        "depth raced; each student but the deepest is cut from the one before it. Every decision is in plan.json.",
        f"All models have the {vocabulary['of_pieces']:,} pieces of the vocabulary, of which {vocabulary['pieces']:,} "
        "were trained; in 8 bits, those that the training texts use least take few bytes.",
        f"Latency: medians of one text of {timed['length']} tokens and of 32 such texts at once, measured in turns on "
        f"{timed['processor']}, {timed['threads']} thread{'s' * (timed['threads'] != 1)}; of linear models, of "
        "reported texts of middle length.",
    ]
