"""Define the commands that look at finished runs and models: their scores, comparisons, analyses and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from limbeck.cli.options import AllowCode, DataDir, Overrides, SpreadsheetSafe, option_overrides
from limbeck.cli.render import answer, comparison_values, out, show_glue, show_scores, show_submission, table_values
from limbeck.errors import RecipeError, unknown

if TYPE_CHECKING:
    from limbeck.compare.entries import EntrySet

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH... [KEY=VALUE]...",
        help="Run directories, folders of them, or a study's folder; and what is elsewhere now than when they ran, "
        "e.g. task.data_dir=data/glue.",
    ),
]
AllSeeds = Annotated[
    bool, typer.Option("--all-seeds", help="Measure every run of a study or folder, not only the first seed of each.")
]


def evaluate(
    model: Annotated[str, typer.Argument(help="A run directory, a model folder or a name on the hub.")],
    overrides: Overrides = None,
    task: Annotated[str | None, typer.Option(help="Needed unless MODEL is a run directory.")] = None,
    data_dir: DataDir = None,
    split: Annotated[str | None, typer.Option(help="Which split to score. Default: all validation data.")] = None,
    submission: Annotated[
        Path | None, typer.Option(help="Write what the official evaluation of GLUE or SQuAD takes into this folder.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    """Score a model on a task with the task's official metrics."""
    from limbeck.inference.evaluate import evaluate as score

    flags = [*option_overrides(data_dir), *(overrides or [])]
    result = score(model, task=task, split=split, overrides=flags, batch_size=batch_size, submission=submission)
    answer(model=model, **vars(result))
    if result.metrics:
        show_scores(f"{model} on {result.task}, {result.split} ({result.examples:,} examples)", result.metrics)
    if submission is not None:
        show_submission(submission, result.files)


def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Run directories, folders of them, or a study's folder.")
    ],
    baseline: Annotated[
        list[str] | None, typer.Option(help="A row that the others are tested against; several times for several.")
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(help="welch (default) or paired, of scores over seeds; mcnemar or bootstrap, of predictions."),
    ] = None,
    sided: Annotated[
        str | None, typer.Option(help="two (default), greater (is it better?) or observed (is what is ahead better?).")
    ] = None,
    level: Annotated[float | None, typer.Option(help="What p must be below for a mark. Default: 0.05.")] = None,
    metric: Annotated[str | None, typer.Option(help="Show this metric only.")] = None,
    holm: Annotated[
        bool | None,
        typer.Option("--holm/--no-holm", help="Correct p for the number of tests. Default: as a study says, else yes."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="each (default), or best: of the baselines, the best one of each column.")
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--details", help="Also every mean with its 95% interval, and every test with its p.")
    ] = False,
    form: Annotated[str | None, typer.Option("--format", help="terminal (default), markdown, latex or csv.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the table to this file: .md, .tex or .csv.")
    ] = None,
    safe: SpreadsheetSafe = True,
) -> None:
    """Show finished runs in one table: mean and deviation over seeds, and what differs by more than chance.

    Two run directories alone are compared example by example. A study brings its own baselines and test.
    """
    from limbeck._internal.files import write_text
    from limbeck._internal.spreadsheets import warn_of_guards
    from limbeck.compare.comparison import compare_paths
    from limbeck.compare.details import detail_tables
    from limbeck.compare.tables import check_format, count_guarded, format_of, render, show_table
    from limbeck.runs.outputs import check_not_read

    chosen = check_format(form) if form else format_of(output) if output else "terminal"
    if output is not None:
        check_not_read(output)
    correction = None if holm is None else "holm" if holm else "none"
    result = compare_paths(
        paths,
        baselines=baseline,
        test=test,
        sided=sided,
        level=level,
        metric=metric,
        correction=correction,
        against=against,
    )
    tables = [result.table, *result.further, *(detail_tables(result.scores, result.tests) if detailed else [])]
    answer(**comparison_values(result))
    if chosen == "csv" and safe:
        warn_of_guards(count_guarded(tables), output or "The table", "--raw-csv writes every text as it is.")
    if output is not None:
        write_text(output, "\n".join(render(table, chosen, raw_csv=not safe) for table in tables))
        out.print(f"Written: {output}", highlight=False)
    elif chosen == "terminal":
        for table in tables:
            show_table(table, out)
    else:
        print(*(render(table, chosen, raw_csv=not safe) for table in tables), sep="\n", end="")


def rivals(
    words: Words,
    model: Annotated[
        str | None,
        typer.Option(
            help="The pre-trained model whose frozen features are read. Default: what the teacher was fine-tuned from, "
            "or the teacher itself where that is not known."
        ),
    ] = None,
) -> None:
    """Fit the trivial models that a student must beat, and keep them beside the runs for 'compare' and 'report'.

    They are linear models: on TF-IDF of words and characters, and on the frozen encoder's features at the student's
    depth and at its own. What was made before, for the same data and model, is not made again.
    """
    from limbeck.compare.comparison import compare as compare_entries
    from limbeck.compare.entries import read_entries
    from limbeck.compare.tables import show_table
    from limbeck.rivals.of_runs import Owner, rivals_of_runs
    from limbeck.runs.directory import StudyDirectory

    paths, overrides = _paths_and_overrides(words)
    found = read_entries(paths)
    _chosen(paths, found, all_seeds=True)  # refuses runs that a link takes elsewhere
    studies = [path for path in paths if StudyDirectory(path).finished]
    owners = [
        Owner(run, next((study for study in studies if run.path.is_relative_to(study)), None))
        for entry in found.entries
        for run in entry.runs
    ]
    made = rivals_of_runs(owners, model=model, overrides=overrides)
    result = compare_entries(read_entries(paths), baselines=[])
    answer(**comparison_values(result), left_out={task: kept.left_out for task, kept in made.items()})
    show_table(result.table, out)
    for task, kept in made.items():
        for name, why in kept.left_out.items():
            out.print(f"{task} has no row for {name}: {why}", highlight=False, soft_wrap=True)


def analyze(
    words: Words,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures and tables.")] = Path(
        "analysis"
    ),
    examples: Annotated[int, typer.Option(min=4, help="Validation examples to measure on, at most.")] = 1000,
    preset: Annotated[
        str | None,
        typer.Option(help="Measure as a paper did: jung2023 or saadi2023. Options given beside it go before."),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="What stands for a sample: mean (default), cls, last (token) or flat (all of them)."),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Whose features are related: last (default) or penultimate.")
    ] = None,
    estimator: Annotated[
        str | None, typer.Option(help="Of CKA in heat maps: unbiased (default), or biased as in Jung et al. 2023.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Examples of a mini-batch. Default: 32, fewer where there would be less than 8."),
    ] = None,
    sentence: Annotated[
        list[str] | None, typer.Option(help="A sentence whose tokens are related; several times for several.")
    ] = None,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Time training steps and predictions.")] = True,
    all_seeds: AllSeeds = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what was measured before.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Measure how students resemble their teacher, and draw it: restoration, CKA, relations, calibration, cost.

    What is measured stays in each run directory, in its folder "analysis"; figures (SVG, PNG, PDF) and tables go to the
    output folder.
    """
    from limbeck._internal.processes import on_rank_zero
    from limbeck.analysis.analyze import PRESETS, Settings
    from limbeck.analysis.analyze import analyze as measure
    from limbeck.analysis.geometry_pass import CKAEstimator, SamplePooling
    from limbeck.compare.entries import read_entries
    from limbeck.compare.tables import show_table
    from limbeck.inference.relation_difference import Layer
    from limbeck.report.data import gather
    from limbeck.report.figures import all_figures
    from limbeck.report.folder import write_folder
    from limbeck.report.tables import all_tables

    paths, overrides = _paths_and_overrides(words)
    for option, value, choices in (
        ("preset", preset, tuple(PRESETS)),
        ("pool", pool, get_args(SamplePooling)),
        ("layer", layer, get_args(Layer)),
        ("estimator", estimator, get_args(CKAEstimator)),
    ):
        if value is not None and value not in choices:
            raise RecipeError(unknown(option, value, choices, f"There are {', '.join(choices)}."))
    given = {"pool": pool, "layer": layer, "estimator": estimator, "batch_size": batch_size}
    chosen = PRESETS[preset] if preset else {}
    chosen = chosen | {name: value for name, value in given.items() if value is not None}
    settings = Settings(examples=examples, sentences=tuple(sentence or ()), cost=cost, **chosen)
    found = read_entries(paths)
    measure(_chosen(paths, found, all_seeds), settings, overrides=overrides, force=force, allow_code=allow_code)

    def draw() -> None:
        results = gather(found)
        tables = all_tables(results)
        files = write_folder(all_figures(results), tables, output)
        answer(output=output, files=sorted(file.name for file in files), tables=table_values(tables))
        for table in tables:
            show_table(table, out)
        out.print(f"{len(files)} files in {output}", highlight=False)

    on_rank_zero(draw)


def report(
    words: Words,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures (SVG, PNG, PDF) and tables into this folder.")
    ] = None,
    measured: Annotated[
        bool, typer.Option("--analyze/--no-analyze", help="Measure first what 'limbeck analyze' has not yet.")
    ] = True,
    all_seeds: AllSeeds = False,
) -> None:
    """Write one self-contained page about finished runs: scores, significance, pictures, recipes, how to repeat it."""
    from limbeck.analysis.analyze import analyze as measure
    from limbeck.compare.entries import read_entries
    from limbeck.report.page import write_report
    from limbeck.runs.outputs import check_not_read

    check_not_read(output)
    paths, overrides = _paths_and_overrides(words)
    found = read_entries(paths)
    if measured:
        # worth having without the analysis of a run whose teacher or data are gone
        measure(_chosen(paths, found, all_seeds), overrides=overrides, keep_going=True, any_settings=True)
    write_report(paths, output, figures)
    out.print(f"Report: {output}", highlight=False)


def _paths_and_overrides(words: list[str]) -> tuple[list[Path], list[str]]:
    paths = [Path(word) for word in words if "=" not in word or Path(word).exists()]
    if not paths:
        raise RecipeError("Which runs? Name run directories, folders of them, or a study's folder.")
    return paths, [word for word in words if Path(word) not in paths]


def _chosen(paths: list[Path], found: EntrySet, all_seeds: bool) -> list[Path]:
    """Choose the runs to measure: those that are named, and the first seed of each method in studies and folders.

    One that a link in such a folder takes elsewhere is refused, because what is measured is written into the run.
    """
    from limbeck._internal.links import refuse_outside

    named = {path.resolve() for path in paths}
    chosen = [
        run.path
        for entry in found.entries
        for number, run in enumerate(entry.runs)
        if all_seeds or number == 0 or run.path.resolve() in named
    ]
    for run in chosen:
        for path in paths:
            if run != path and run.is_relative_to(path):
                refuse_outside(run, path)
    return list(dict.fromkeys(chosen))


def glue(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs; several seeds are averaged.")],
) -> None:
    """Show the GLUE scores of finished runs in one table, with the averages that GLUE and papers report."""
    from limbeck.compare.glue_table import read_glue_scores

    show_glue(read_glue_scores(runs))
