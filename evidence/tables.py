"""Make the page's tables, each from results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidence.claims import CLAIMS, LEVEL, Finding, findings_of, verdict
from evidence.results import MAIN, OTHERS, TASKS, MethodRuns, ResultFiles, compared, testable
from limbeck.compare.tables import Cell, Table
from limbeck.stats import Summary
from limbeck.study.description import short_task

BASELINES = {"ft": "†", "kd": "‡"}
MISSING = "missing"
GROUPS = {
    "One aligned pair of layers, or three (CKA)": ("cka, 1 pair", "cka, 3 pairs"),
    "One aligned pair of layers, or three (Shape)": ("shape, 1 pair", "shape, 3 pairs"),
    "Structures of FSD: intra-feature (I), local (L), global (G)": (
        *("fsd", "fsd without G", "fsd without L and G", "fsd without I and G", "fsd without I and L"),
    ),
    "The loss between FCD's relations": ("fcd", "fcd, MSE", "fcd, KL"),
    "How FCD normalises features": ("fcd", "fcd, no norm", "fcd, LayerNorm", "fcd, softmax"),
    "Which of the teacher's layers FCD takes": ("fcd", "fcd, top layers", "fcd, bottom layers"),
    "K of ICS": ("ics, K = 1", "ics, K = 2", "ics, K = 3", "ics, K = 5"),
}
ALL_METHODS = ("ft", "kd", "cka", "shape", "fsd", "fcd", "ics", "pkd", "rkd", "minilmv2")


def main_table(results: ResultFiles) -> Table:
    """Show methods by tasks: ours with marks, and what the paper reports of its own models."""
    marks = _marks(results)
    head = ["method"]
    for task in TASKS:
        head += [f"{short_task(task)} ({_metric(results, task)})", "paper"]
    rows = [_row("majority class", [_of_teacher(results, task, "majority") for task in TASKS])]
    rows.append(_row("teacher", [_of_teacher(results, task, "metrics") for task in TASKS]))
    for label in ALL_METHODS:
        cells = [Cell(label)]
        for task in TASKS:
            line = results.searched(task, label)
            cells += [_score(line, marks), _printed(line)]
        rows.append(tuple(cells))
    return Table("Scores", tuple(head), tuple(rows))


def claims_table(results: ResultFiles) -> Table:
    """Show each claim with its verdict and the differences behind it."""
    rows = []
    for claim in CLAIMS:
        found = findings_of(claim, results)
        numbers = "; ".join(map(_finding, found))
        rows.append((Cell(claim.paper), Cell(claim.words), Cell(verdict(found)), Cell(numbers)))
    return Table("Claims", ("paper", "claim", "here", "difference in points (p)"), tuple(rows), left=4)


def ablation_tables(results: ResultFiles) -> list[Table]:
    """Make a table for each group; differences are against its first row."""
    tables = []
    for task in TASKS:
        for title, labels in GROUPS.items():
            known = (results.fixed(task, label) for label in labels)
            lines = [line for line in known if line is not None and testable(line, line)]
            if len(lines) < 2:
                continue
            tests = [None, *compared([(line, lines[0]) for line in lines[1:]])]
            rows = [
                (
                    Cell(line.label),
                    _score(line, {}),
                    Cell("" if found is None else f"{found[0].difference:+.1f} ({_p(found[1])})"),
                    _printed(line),
                )
                for line, found in zip(lines, tests, strict=True)
            ]
            head = (
                "method",
                f"{short_task(task)} ({_metric(results, task)})",
                f"against {lines[0].label} (p)",
                "paper",
            )
            tables.append(Table(title, head, tuple(rows)))
    return tables


def terms_table(results: ResultFiles) -> Table:
    """Show the terms of each loss at the beginning and the end of training, and the agreement with the teacher."""
    rows = []
    for task in results.tasks(MAIN):
        for line in results.files[MAIN, task].methods.values():
            terms = [
                f"{name} {_mean(line, name, 0):.3g} → {_mean(line, name, 1):.3g}"
                for name in line.runs[0]["terms"]
                if all(name in run["terms"] for run in line.runs)
            ]
            agreement = line.mean("agreement")
            agrees = "" if agreement is None else f"{100 * agreement:.1f}"
            rows.append((Cell(short_task(task)), Cell(line.label), Cell(", ".join(terms)), Cell(agrees)))
    return Table("Terms", ("task", "method", "terms, first → last", "agreement"), tuple(rows), left=3)


def dev_table(results: ResultFiles) -> Table:
    """Show what is left of each term on other texts than those of training, and how hard it pulls."""
    rows = []
    for task in results.tasks(MAIN):
        for line in results.files[MAIN, task].methods.values():
            measured = line.values["dev"] or {"pulls": {}}
            for term, pull in measured["pulls"].items():
                of = {name: terms[term] for name, terms in measured["terms"].items()}
                cells = [
                    Cell(f"{of[name]:.3g}" if name in of else MISSING) for name in ("before", *BASELINES, line.label)
                ]
                rows.append((Cell(short_task(task)), Cell(line.label), Cell(term), *cells, Cell(f"{pull:.2g}")))
    return Table(
        "Terms on validation data",
        ("task", "loss of", "term", "before", *BASELINES, "its own student", "pull"),
        tuple(rows),
        left=3,
    )


def times_table(results: ResultFiles) -> Table:
    """Show the minutes of training of one run, in one thread beside another run."""
    tasks = results.tasks(MAIN)
    rows = []
    for label in ALL_METHODS:
        lines = [results.searched(task, label) for task in tasks]
        if any(lines):
            cells = [Cell(MISSING if line is None else f"{(line.mean('seconds') or 0) / 60:.1f}") for line in lines]
            rows.append((Cell(label), *cells))
    teachers = [results.files[MAIN, task].values["teacher"]["seconds"] / 60 for task in tasks]
    rows.insert(0, (Cell("teacher"), *(Cell(f"{minutes:.1f}") for minutes in teachers)))
    return Table("Minutes", ("method", *map(short_task, tasks)), tuple(rows))


def settings_table(results: ResultFiles) -> Table:
    """Show what the search tried on the seed that chose, and what it took."""
    rows = []
    for study in (MAIN, OTHERS):
        for task in results.tasks(study):
            for line in results.files[study, task].methods.values():
                tried = [_trial(**trial) for trial in line.values["searched"]]
                rows.append((Cell(short_task(task)), Cell(line.label), Cell("; ".join(tried) or "nothing searched")))
    return Table("Settings", ("task", "method", "settings tried, with their scores"), tuple(rows), left=3)


def readme_table(results: ResultFiles) -> Table:
    """Show the first columns of the main table, for a smaller place."""
    marks = _marks(results)
    tasks = results.tasks(MAIN)
    head = ("method", *(f"{short_task(task)} ({_metric(results, task)})" for task in tasks))
    rows = [(Cell("teacher"), *(_of_teacher(results, task, "metrics") for task in tasks))]
    for label in ALL_METHODS:
        lines = [results.searched(task, label) for task in tasks]
        if any(lines):
            rows.append((Cell(label), *(_score(line, marks) for line in lines)))
    return Table("Methods", head, tuple(rows))


def _marks(results: ResultFiles) -> dict[tuple[str, str], str]:
    """Choose daggers by task and method, with Holm's correction over all comparisons of the table."""
    pairs = []
    for task in TASKS:
        for label in ALL_METHODS:
            line = results.searched(task, label)
            for base in BASELINES:
                other = results.searched(task, base)
                if line and other and label != base and testable(line, other):
                    pairs.append((line, other))
    marks: dict[tuple[str, str], str] = {}
    for (line, other), (test_, p) in zip(pairs, compared(pairs), strict=True):
        if p < LEVEL:
            mark = BASELINES[other.label] + ("" if test_.difference > 0 else "↓")
            marks[line.task, line.label] = marks.get((line.task, line.label), "") + mark
    return marks


def _score(line: MethodRuns | None, marks: dict[tuple[str, str], str]) -> Cell:
    if line is None:
        return Cell(MISSING)
    missing = f", {line.values['missing']} {MISSING}" if line.values["missing"] else ""
    return Cell(f"{_spread(line.summary)}{missing}", marks=marks.get((line.task, line.label), ""))


def _spread(found: Summary) -> str:
    return f"{found.mean:.1f}" if found.sd is None else f"{found.mean:.1f} ± {found.sd:.1f}"


def _printed(line: MethodRuns | None) -> Cell:
    printed = line.printed() if line else None
    if printed is None:
        return Cell("")
    return Cell(f"{printed['value']:g}" + (f" ± {printed['sd']:g}" if printed.get("sd") is not None else ""))


def _of_teacher(results: ResultFiles, task: str, kind: str) -> Cell:
    file = results.files.get((MAIN, task))
    if file is None:
        return Cell(MISSING)
    teacher = file.values["teacher"]
    return Cell(f"{100 * teacher[kind][teacher['metric']]:.1f}")


def _row(name: str, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    return (Cell(name), *(part for cell in cells for part in (cell, Cell(""))))


def _metric(results: ResultFiles, task: str) -> str:
    found = [file for (_, of), file in results.files.items() if of == task]
    return str(found[0].values["teacher"]["metric"]) if found else MISSING


def _finding(finding: Finding) -> str:
    beside = f" against {finding.theirs.label}"
    return f"{short_task(finding.ours.task)}{beside} {finding.test.difference:+.1f} ({_p(finding.p)})"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _mean(line: MethodRuns, term: str, place: int) -> float:
    return sum(run["terms"][term][place] for run in line.runs) / len(line.runs)


def _trial(point: Mapping[str, Any], score: float | None) -> str:
    named = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in point.items())
    return f"{named}: {'failed' if score is None else f'{100 * score:.1f}'}"
