"""Put together what was made and measured, and say it in sentences, good and bad ones alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from limbeck._internal.files import readable_size
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.shrink.budget import Budget
from limbeck.shrink.forms import student_name
from limbeck.shrink.front import knee, within
from limbeck.shrink.layout import FORMS, STUDENTS, TEACHER
from limbeck.shrink.plan import Request
from limbeck.shrink.scores import ModelScores
from limbeck.study.halving import RaceResult

ShrinkSummary = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """Hold what was measured of all models: answers, figures by name, and under which conditions."""

    scores: ModelScores
    figures: dict[str, dict[str, Any]]
    rivals: list[str]
    length: int  # of the timed text, in tokens
    budget: Budget | None
    conditions: dict[str, Any]


def summarise(
    request: Request,
    plan: Mapping[str, Any],
    measured: Measured,
    races: Mapping[int, RaceResult],
    winners: Mapping[int, Path],
    refused: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    """Return everything that the pages say, as plain data."""
    scores, figures = measured.scores, measured.figures
    teacher_ms = figures[TEACHER]["p50_ms"]
    depths = {student_name(depth, form): depth for depth in winners for form in FORMS}
    models = []
    for name, own in figures.items():
        kind = "rival" if name in measured.rivals else "student" if name in depths else "teacher"
        entry = {
            "name": name,
            "kind": kind,
            "chosen_by": scores.choosing_score(name),
            "score": scores.score(name),
            **own,
        }
        entry["agreement"] = None if name == TEACHER else scores.agreement(name, TEACHER)
        entry["latency_ratio"] = own["p50_ms"] / teacher_ms
        entry["within_budget"] = measured.budget is None or measured.budget.met(own["p50_ms"], teacher_ms)
        if kind == "student":
            entry |= {"depth": depths[name], "against_teacher": scores.difference(name, TEACHER)}
            entry["against_rivals"] = {rival: scores.difference(name, rival) for rival in measured.rivals}
        models.append(entry)
    noise = scores.choosing_noise(TEACHER)
    chosen, met = _choose([model for model in models if model["kind"] == "student"], measured, teacher_ms, noise)
    task = scores.task
    return {
        "asked": dict(plan["asked"]),
        "metric": scores.metric,
        "rows": {
            "train": len(task.split("train")),
            "choosing": len(task.split("validation")),
            "reported": len(task.split("test")),
        },
        "majority": scores.majority(),
        "vocabulary": {key: plan["base"][key] for key in ("pieces", "of_pieces", "why") if key in plan["base"]},
        "teacher": dict(plan["teacher"]) | {"layers": plan["layers"]["of"]},
        "students": {
            str(depth): {"run": str(path.relative_to(folder)), "layers": plan["race"]["layers"][str(depth)]}
            | {"method": races[depth].winner.values["method"]["name"]}  # type: ignore[union-attr]
            for depth, path in winners.items()
        },
        "race": {key: plan["race"][key] for key in ("depths", "candidates", "epochs")},
        "models": models,
        "chosen": {"name": chosen["name"], "folder": _folder_of(chosen, depths), "met": met, "noise": noise},
        "budget": None if measured.budget is None else asdict(measured.budget),
        "timed": {"length": measured.length, **measured.conditions},
        "not_exported": dict(refused),
    }


def _choose(
    students: Sequence[dict[str, Any]], measured: Measured, teacher_ms: float, noise: float
) -> tuple[dict[str, Any], bool]:
    """Choose what is proposed, and tell whether it is within the budget: without one the knee of the front."""
    if measured.scores.metric in SMALLER_IS_BETTER:
        students = [model | {"chosen_by": -model["chosen_by"]} for model in students]
    if measured.budget is None:
        return dict(knee(students, noise)), True
    found = within(students, measured.budget, teacher_ms)
    return (dict(found), True) if found is not None else (min(students, key=lambda model: model["p50_ms"]), False)


def _folder_of(model: Mapping[str, Any], depths: Mapping[str, int]) -> str:
    form = "onnx-int8" if model["form"] == "onnx-int8" else "hf"
    return f"{STUDENTS}/{depths[model['name']]}/{FORMS[form]}"


def findings(summary: ShrinkSummary) -> list[str]:
    """Return what was found as sentences."""
    said = [_choice(summary), *_against_teacher(summary), *_against_rivals(summary), *_notes(summary)]
    return [sentence for sentence in said if sentence]


def entry_of(summary: ShrinkSummary, name: str) -> Mapping[str, Any]:
    """Return what is known of a model."""
    return next(model for model in summary["models"] if model["name"] == name)


def _choice(summary: ShrinkSummary) -> str:
    chosen, teacher = entry_of(summary, summary["chosen"]["name"]), entry_of(summary, TEACHER)
    student = summary["students"][str(chosen["depth"])]
    layers = ", ".join(map(str, student["layers"]))
    what = f"{chosen['name']} (the teacher's {layers}; {student['method']})"
    cost = (
        f"{_points(summary, chosen)}, {chosen['p50_ms']:.1f} ms for one text of {summary['timed']['length']} tokens "
        f"and {readable_size(chosen['disk_bytes'])}, where the teacher has {_points(summary, teacher)}, "
        f"{teacher['p50_ms']:.1f} ms and {readable_size(teacher['disk_bytes'])}"
    )
    if summary["budget"] is None:
        return f"Proposed: {what}, in {summary['chosen']['folder']}: {cost}. More time buys little more score."
    if summary["chosen"]["met"]:
        return f"The best within {summary['asked']['budget']}: {what}, in {summary['chosen']['folder']}: {cost}."
    return (
        f"The budget of {summary['asked']['budget']} could not be met. The fastest is {what}, in "
        f"{summary['chosen']['folder']}: {cost}."
    )


def _points(summary: ShrinkSummary, model: Mapping[str, Any]) -> str:
    return f"{summary['metric']} {readable_score(summary['metric'], model['score']['value'])}"


def _against_teacher(summary: ShrinkSummary) -> list[str]:
    """Say for each depth what was lost, in the form that is served."""
    said = []
    for model in _plain_students(summary):
        said.append(f"{model['name']}: {_compared(summary, model['against_teacher'], 'the teacher')}.")
    return said


def _plain_students(summary: ShrinkSummary) -> list[Mapping[str, Any]]:
    return [model for model in summary["models"] if model["kind"] == "student" and model["form"] == "torch"]


def _compared(summary: ShrinkSummary, difference: Mapping[str, float], with_whom: str) -> str:
    """Write a difference: ``1.2 points below the teacher, within noise (95% interval -2.5 to +0.1)``."""
    hundred = 1 if summary["metric"] in SMALLER_IS_BETTER else 100
    value, low, high = (hundred * difference[key] for key in ("value", "low", "high"))
    interval = f"95% interval {low:+.1f} to {high:+.1f}"
    moved = (
        f"{abs(value):.1f} points {'above' if value > 0 else 'below'} {with_whom}" if value else f"equal to {with_whom}"
    )
    return f"{moved}, within noise ({interval})" if low <= 0 <= high else f"{moved} ({interval})"


def _against_rivals(summary: ShrinkSummary) -> list[str]:
    """Call a student that is not better than a linear model by that name, and say what such a model costs."""
    said = []
    for rival in (model for model in summary["models"] if model["kind"] == "rival"):
        cost = f"{rival['name']} ({_points(summary, rival)}, {rival['p50_ms']:.1f} ms)"
        differences = {model["name"]: model["against_rivals"][rival["name"]] for model in _plain_students(summary)}
        worse = [name for name, difference in differences.items() if not _beats(summary, difference)]
        if not worse:
            said.append(f"Every student is better than {cost}.")
        elif len(worse) == len(differences):
            said.append(f"Not better than {cost} beyond noise: any student. That model needs no training of layers.")
        else:
            said.append(f"Not better than {cost} beyond noise: {', '.join(worse)}.")
    return said


def _beats(summary: ShrinkSummary, difference: Mapping[str, float]) -> bool:
    return difference["high"] < 0 if summary["metric"] in SMALLER_IS_BETTER else difference["low"] > 0


def _notes(summary: ShrinkSummary) -> list[str]:
    said = []
    int8 = next((model for model in summary["models"] if model["name"] == f"{TEACHER}, int8"), None)
    if int8 is not None:
        said.append(
            f"The teacher itself as int8: {_points(summary, int8)}, {int8['p50_ms']:.1f} ms "
            f"({int8['latency_ratio']:.2f}x), {readable_size(int8['disk_bytes'])}."
        )
    teacher = summary["teacher"]
    share = teacher.get("share")
    if share == 0:
        said.append("Fine-tuning did not improve on the fitted head, so the teacher is the model with that head.")
    elif share is not None and share < 1:
        said.append(
            f"The teacher's weights lie between those before and after its fine-tuning, at {100 * share:.0f}% of the "
            "change: of these points it answers the rows that choose best."
        )
    sign = -1 if summary["metric"] in SMALLER_IS_BETTER else 1
    for model in [entry_of(summary, TEACHER), *_plain_students(summary)]:
        if sign * model["score"]["value"] <= sign * summary["majority"]:
            said.append(f"{model['name']} is no better than always answering the most frequent label.")
    if (least := min(summary["race"]["epochs"])) < 1:
        said.append(f"Students saw {least:g} of a pass over the data; more --minutes will probably help.")
    if why := summary["vocabulary"].get("why"):
        said.append(f"The vocabulary is whole: {why}")
    said += [f"Not exported: {name}: {why}" for name, why in summary["not_exported"].items()]
    said += [f"Failed: {key}: {why}" for key, why in summary.get("failed", {}).items()]
    said.append("Each candidate ran once, with one seed: another seed gives somewhat other scores.")
    return said
