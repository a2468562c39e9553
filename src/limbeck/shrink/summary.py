"""Write the summary of 'limbeck shrink' for people: what was lost and gained, in sentences and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limbeck._internal.files import readable_size

ShrinkSummary = Mapping[str, Any]


def findings(summary: ShrinkSummary) -> list[str]:
    """Return what was found as sentences, good and bad ones alike."""
    said = [_lost(summary), _against_ft(summary), _budget(summary), *_forms(summary), *_doubts(summary)]
    return [sentence for sentence in said if sentence]


def _lost(summary: ShrinkSummary) -> str:
    student, difference = summary["student"], summary["against_teacher"]
    smaller = f"{student['layers']} of {student['of_layers']} layers, {student['parameters'] / 1e6:.1f} M parameters"
    return f"The student ({student['method']}; {smaller}) {_compared(difference, 'the teacher')}."


def _compared(difference: Mapping[str, float], with_whom: str) -> str:
    """Write a difference: ``lost 1.2 points against the teacher, within noise (95% interval -2.5 to +0.1)``."""
    value, low, high = (100 * difference[key] for key in ("value", "low", "high"))
    interval = f"95% interval {low:+.1f} to {high:+.1f}"
    if low <= 0 <= high:
        moved = f"{'gained' if value > 0 else 'lost'} {abs(value):.1f} points" if value else "lost nothing"
        return f"{moved} against {with_whom}, within noise ({interval})"
    return f"{'gained' if value > 0 else 'lost'} {abs(value):.1f} points against {with_whom} ({interval})"


def _against_ft(summary: ShrinkSummary) -> str:
    method, difference = summary["student"]["method"], summary["against_ft"]
    tried = [entry["method"] for entry in summary["methods"] if "score" in entry]
    others = ", ".join(name for name in tried if name != "ft")
    if method == "ft":
        return f"No method ({others}) beat plain fine-tuning, so its student was taken." if others else ""
    if difference is None:
        return "Plain fine-tuning (ft) failed, so what distillation adds is not known."
    value = 100 * difference["value"]
    if difference["low"] > 0:
        return f"{method} beat plain fine-tuning of the same layers by {value:.1f} points."
    if difference["high"] < 0:
        return f"{method} was chosen, but on the other rows plain fine-tuning is better by {-value:.1f} points."
    return f"{method} was chosen, but is no better than plain fine-tuning beyond noise ({value:+.1f} points)."


def _budget(summary: ShrinkSummary) -> str:
    budget = summary["budget"]
    taken = f"{budget['p50_ms']:.1f} ms for one text of {budget['length']} tokens as {budget['form']}"
    against = f"the teacher's {budget['teacher_ms']:.1f} ms ({budget['p50_ms'] / budget['teacher_ms']:.2f}x)"
    if budget["met"]:
        return f"The budget of {summary['asked']['budget']} is met: {taken}, against {against}."
    return (
        f"The budget of {summary['asked']['budget']} could not be met. The nearest takes {taken}, against {against}; "
        f"{budget['limit_ms']:.1f} ms were allowed."
    )


def _forms(summary: ShrinkSummary) -> list[str]:
    by_name = {model["name"]: model for model in summary["models"]}
    said = []
    if int8 := by_name.get("student, onnx-int8"):
        said.append(f"As int8 the student takes {_cost(int8)}.")
    teacher = by_name.get("teacher, onnx-int8")
    if teacher and teacher["within_budget"]:
        said.append(f"The teacher itself meets the budget as int8, without a student: {_cost(teacher)}.")
    return said + [f"Not exported as {form}: {why}" for form, why in summary["not_exported"].items()]


def _cost(model: Mapping[str, Any]) -> str:
    score = f"{100 * model['score']['value']:.1f}"
    size = readable_size(model["disk_bytes"])
    return f"{model['p50_ms']:.1f} ms ({model['latency_ratio']:.2f}x) and {size}, and scores {score}"


def _doubts(summary: ShrinkSummary) -> list[str]:
    said = []
    scores = {"teacher": summary["teacher"]["score"], "student": _entry(summary)["score"]}
    no_better = [name for name, score in scores.items() if score["value"] <= summary["majority"]]
    said += [f"The {name} is no better than always answering the most frequent label." for name in no_better]
    said += [f"{entry['method']} failed: {entry['failed']}" for entry in summary["methods"] if "failed" in entry]
    epochs = min(summary["student"]["epochs"], summary["teacher"].get("epochs") or 3)
    if epochs < 1:
        said.append(f"Training stopped after {epochs:g} of a pass over the data; more --minutes will probably help.")
    said.append("Each method ran once, with one seed: another seed gives somewhat other scores.")
    return said


def _entry(summary: ShrinkSummary) -> Mapping[str, Any]:
    """Return the entry of the method that was chosen."""
    return next(entry for entry in summary["methods"] if entry["method"] == summary["student"]["method"])


def summary_page(summary: ShrinkSummary) -> str:
    """Return the summary as Markdown: sentences, a table of models, one of methods, and how they were measured."""
    asked = summary["asked"]
    lines = [f"# {Path(asked['data']).name}, within {asked['budget']}", ""]
    lines += [f"- {sentence}" for sentence in findings(summary)]
    lines += ["", *_model_table(summary), "", *_method_table(summary), "", *_conditions(summary)]
    return "\n".join(lines) + "\n"


def _model_table(summary: ShrinkSummary) -> list[str]:
    header = f"| model | {summary['metric']} | agrees with teacher | parameters | disk | one text | 32 texts |"
    return [header, "|---|" + "---:|" * 6, *(f"| {' | '.join(_cells(model))} |" for model in summary["models"])]


def _method_table(summary: ShrinkSummary) -> list[str]:
    lines = [f"| method | chosen by | {summary['metric']} | agrees with teacher |", "|---|---:|---:|---:|"]
    for entry in summary["methods"]:
        if "score" in entry:
            chosen_by, agreement = f"{100 * entry['chosen_by']:.2f}", f"{100 * entry['agreement']:.1f}%"
            cells = (entry["method"], chosen_by, score_with_interval(entry["score"]), agreement)
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _conditions(summary: ShrinkSummary) -> list[str]:
    rows, where, teacher = summary["rows"], summary["conditions"], summary["teacher"]
    return [
        f"- {rows['train']:,} training rows. {rows['choosing']:,} others chose among the methods, and "
        f"{rows['reported']:,} more, which chose nothing, give the scores (with 95% bootstrap intervals).",
        f"- The teacher is {teacher['about']}. Always answering the most frequent label scores "
        f"{100 * summary['majority']:.2f}.",
        f"- Latency: medians of one text of {summary['budget']['length']} tokens and of 32 such texts at once, "
        f"measured in turns on {where['processor']}, {where['threads']} thread{'s' * (where['threads'] != 1)}.",
    ]


def _cells(model: Mapping[str, Any]) -> tuple[str, ...]:
    agreement = "" if model["agreement"] is None else f"{100 * model['agreement']:.1f}%"
    latency = f"{model['p50_ms']:.1f} ms ({model['latency_ratio']:.2f}x)"
    sizes = (f"{model['parameters']:,}", readable_size(model["disk_bytes"]), latency, f"{model['batch_ms']:.0f} ms")
    return (model["name"], score_with_interval(model["score"]), agreement, *sizes)


def score_with_interval(score: Mapping[str, float]) -> str:
    """Write a score with its interval: ``91.20 [89.9, 92.4]``."""
    return f"{100 * score['value']:.2f} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"
