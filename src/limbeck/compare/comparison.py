"""Make one table of finished runs: mean and deviation over seeds, the best in bold, daggers beyond chance.

It imports no model, so that tables appear at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limbeck.compare.answers import agreement, answers_of, check_same_data, has_answers
from limbeck.compare.details import summaries
from limbeck.compare.entries import Entry, EntrySet, read_entries
from limbeck.compare.further_tables import further_tables
from limbeck.compare.kept_rivals import find_rivals
from limbeck.compare.rivals import Verdict, judge
from limbeck.compare.score_table import NONE, notes_below, score_rows
from limbeck.compare.significance import (
    Column,
    as_dict,
    compare_by_bootstrap,
    make_plan,
    make_tests,
    right_of,
    sample_of,
)
from limbeck.compare.tables import Cell, Table
from limbeck.errors import RecipeError, unknown
from limbeck.metrics import readable_score
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import Run, read_run
from limbeck.stats import Comparison, Sided, mcnemar


@dataclass(frozen=True)
class ComparisonResult:
    """Hold a table, and ``scores`` and ``tests`` behind it as plain values; ``warnings`` are among its notes too."""

    table: Table
    tests: list[dict[str, Any]]
    warnings: list[str]
    scores: list[dict[str, Any]]
    verdicts: list[Verdict] = field(default_factory=list)  # students that a trivial rival is as good as
    further: list[Table] = field(default_factory=list)  # that a study wants beside the table


def compare_paths(
    paths: Sequence[str | Path],
    *,
    baselines: Sequence[str] | None = None,
    test: str | None = None,
    sided: str | None = None,
    level: float | None = None,
    metric: str | None = None,
    correction: str | None = None,
    against: str | None = None,
) -> ComparisonResult:
    """Compare everything at these paths; two run directories alone are compared example by example."""
    folders = [Path(path) for path in paths]
    if len(folders) == 2 and not baselines and test is None and all(RunDirectory(folder).exists for folder in folders):
        ours, theirs = map(read_run, folders)
        if ours.task == theirs.task:
            side = make_plan((), sided=sided or "two").sided
            return compare_pair(ours, theirs, metric=metric, sided=side)
    given: dict[str, Any] = {"baselines": baselines, "test": test, "sided": sided, "level": level}
    given |= {"correction": correction, "against": against}
    return compare(read_entries(folders), **given, metric=metric)


def compare(
    found: EntrySet,
    *,
    baselines: Sequence[str] | None = None,
    test: str | None = None,
    sided: str | None = None,
    level: float | None = None,
    metric: str | None = None,
    correction: str | None = None,
    against: str | None = None,
) -> ComparisonResult:
    """Compare labels (rows) by task and metric (columns); what is None is as the study says, if there is one.

    Without a study there are no baselines, and the test is Welch's, two-sided, at the level 0.05, corrected by Holm.
    """
    given = {"baselines": baselines, "test": test, "sided": sided, "level": level}
    given |= {"correction": correction, "against": against}
    chosen = found.settings | {key: value for key, value in given.items() if value is not None}
    labels = list(dict.fromkeys(entry.label for entry in found.entries))
    plan = make_plan(labels, **chosen)
    columns = _columns(found.entries, metric)
    tasks = list(dict.fromkeys(entry.task for entry in found.entries))
    for task in tasks:
        check_same_data([run for entry in found.entries if entry.task == task for run in entry.runs])
    tested, warnings = make_tests(found.entries, columns, plan)
    head, rows, background = score_rows(found, labels, columns, plan, tested)
    verdicts = judge(found, columns)
    about_rivals = [verdict.sentence(f" on {verdict.task}" if len(tasks) > 1 else "") for verdict in verdicts]
    what = found.title or (tasks[0] if len(tasks) == 1 else "")
    table = Table(
        title=f"{what}, validation data" if what else "Validation data",
        head=head,
        rows=rows,
        rules=frozenset({background} - {0}),
        notes=(*about_rivals, *notes_below(found, columns, plan, tested, warnings)),
    )
    tests = [as_dict(test.column, test.ours, test.theirs, test.found, test.p_holm) for test in tested]
    further = further_tables(found.entries, columns, found.further)
    return ComparisonResult(table, tests, warnings, summaries(found.entries, columns), verdicts, further)


def compare_pair(ours: Run, theirs: Run, *, metric: str | None = None, sided: Sided = "two") -> ComparisonResult:
    """Compare two runs on the same examples: the interval of the difference in every metric, and where they differ."""
    check_same_data([ours, theirs])
    columns = _columns([Entry(ours.task, "", (ours,))], metric)
    columns = [column for column in columns if column.metric in theirs.scores]
    names = (ours.path.name, theirs.path.name)
    if names[0] == names[1]:
        names = (str(ours.path), str(theirs.path))
    rows, tests, warnings = [], [], []
    kept = has_answers(ours) and has_answers(theirs)
    for column in columns:
        name = column.metric
        scores = ours.scores[name], theirs.scores[name]
        cells = [
            Cell(name),
            *(Cell(readable_score(name, score)) for score in scores),
            Cell(_signed(name, scores[0] - scores[1])),
        ]
        found: Comparison | str = "runs on plain text keep no predictions to compare"
        if kept:
            found = compare_by_bootstrap(name, [sample_of(ours, name)], [sample_of(theirs, name)], sided)
        if isinstance(found, Comparison):
            tests.append(as_dict(column, *names, found))
            ends = [_signed(name, end) for end in (found.low, found.high) if end is not None]
            cells += [Cell(" to ".join(ends)), Cell(_p(found.p).removeprefix("= "))]
        else:
            warnings.append(f"{name}: {found}.")
            cells += [NONE, NONE]
        rows.append(tuple(cells))
    notes = ["Difference: the first minus the second."]
    if tests:
        notes.append("95% interval and p: paired bootstrap of the examples.")
    if kept:
        decisions, about = _decisions(ours, theirs, sided)
        notes += about
        tests += [as_dict(column, *names, decisions) for column in columns if column.main and decisions]
    both = [Entry(run.task, name, (run,)) for name, run in zip(names, (ours, theirs), strict=True)]
    rivals, about_rivals = find_rivals({ours.task: [ours, theirs]}, [])
    verdicts = judge(EntrySet(both, rivals=rivals), columns)
    notes += [*(verdict.sentence() for verdict in verdicts), *about_rivals]
    notes += ["One run of each: other seeds may give another answer.", *warnings]
    head = ("metric", *names, "difference", "95% interval", "p")
    table = Table(f"{ours.task}, validation data", head, tuple(rows), notes=tuple(notes))
    return ComparisonResult(table, tests, warnings, summaries(both, columns), verdicts)


def _decisions(ours: Run, theirs: Run, sided: Sided) -> tuple[Comparison | None, list[str]]:
    """Make McNemar's test, where predictions are right or wrong, and say how far they agree."""
    both = [answers_of(run)[0] for run in (ours, theirs)]
    alike = agreement(*both)
    if both[0].kind == "numbers":
        return None, [f"The predictions of the two correlate with {alike:.4f}."]
    found = mcnemar(right_of(ours), right_of(theirs), sided=sided)
    return found, [
        f"{found.test}: p {_p(found.p)}. The counts are of examples that only the first, or the second, got right.",
        f"The two predict the same in {100 * alike:.2f}%.",
    ]


def _columns(entries: Sequence[Entry], metric: str | None) -> list[Column]:
    columns = []
    for task in dict.fromkeys(entry.task for entry in entries):
        here = [entry for entry in entries if entry.task == task]
        names = dict.fromkeys(name for entry in here for run in entry.runs for name in run.scores)
        if not names:  # nothing is finished, and what a paper reports is still shown
            names = dict.fromkeys(item.metric for entry in here for item in entry.reported) or {"score": None}
        columns += [Column(task, name, place == 0) for place, name in enumerate(names)]
    known = dict.fromkeys(column.metric for column in columns)
    if metric is not None and metric not in known:
        raise RecipeError(unknown("metric", metric, known, f"The runs have {', '.join(known)}."))
    return [column for column in columns if metric in (None, column.metric)]


def _signed(metric: str, value: float) -> str:
    text = readable_score(metric, value)
    return f"+{text}" if value > 0 else text


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
