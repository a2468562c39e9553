"""Run a recipe, stage by stage, into a run directory.

The last stage of a recipe runs in the run directory itself, those before it in ``stage-1``, ``stage-2``, ... inside,
which are run directories too.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from limbeck._internal.locks import locked
from limbeck._internal.processes import join_processes, on_rank_zero
from limbeck.errors import LimbeckError
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.training.assemble import check_stages_fit
from limbeck.training.data_record import check_not_changed, data_named_by
from limbeck.training.layer_choosing import LayerChoice, settle_layers
from limbeck.training.output import check_output, create_run
from limbeck.training.precision import settle_precision
from limbeck.training.session import TrainingSession
from limbeck.training.trainer import Stop

logger = logging.getLogger("limbeck")


def execute(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: bool = False,
    show_data: bool = True,
    stop: Stop | None = None,
    pause_after: float | None = None,
    layer_choices: Path | None = None,
) -> RunDirectory:
    """Run a recipe into ``output``; with ``resume``, continue from the last complete checkpoint there.

    ``stop`` sees the scores of the evaluations so far, and whether more is better; where it says so, the run ends
    without results (``pruned.json`` instead of ``metrics.json``). ``pause_after``, a share of the last stage's steps,
    leaves the run there with a score in its history, to be resumed.
    Runs that share the folder ``layer_choices`` compare layers (``student.keep: best:6``) once for the same teacher and
    data.

    Nothing is written before the recipe, the data and the models have been found to fit together. Processes that a
    launcher started train together; the first one writes.
    """
    join_processes()
    run = RunDirectory(Path(output))
    on_rank_zero(lambda: check_output(run, recipe, resume))
    with ExitStack() as held:
        if not run.finished:
            on_rank_zero(lambda: held.enter_context(locked(run.path)))
        if run.finished:  # before, or by another process just now
            on_rank_zero(lambda: _check_finished(run, recipe.split()[-1]))
            logger.info("%s is finished already.", run.path)
        else:
            if run.results.is_file():
                logger.warning("%s was finished, but %s. It is trained again.", run.path, run.why_unfinished())
            recipe, layers = on_rank_zero(lambda: settle_layers(settle_precision(recipe, run), run, layer_choices))
            _run_stages(recipe, run, show_data, (stop, pause_after), layers)
    return run


def _run_stages(
    recipe: Recipe,
    run: RunDirectory,
    show_data: bool,
    ends_early: tuple[Stop | None, float | None],
    layers: LayerChoice | None,
) -> None:
    stages = recipe.split()
    if len(stages) > 1:
        check_stages_fit(stages)
        on_rank_zero(lambda: create_run(run, recipe, layers))
    student = recipe.student
    for number, stage in enumerate(stages, start=1):
        if len(stages) > 1:
            logger.info("Stage %d of %d: %s on %s.", number, len(stages), stage.method.name, stage.task.name)
        last = number == len(stages)
        directory = run if last else run.stage(number)
        if directory.finished:
            on_rank_zero(lambda at=directory, done=stage: _check_finished(at, done))  # type: ignore[misc]
        else:
            stage = stage.model_copy(update={"student": student})
            of_last = (*ends_early, layers) if last else ()
            session = TrainingSession(stage, directory, recipe if last else stage, *of_last)
            session.describe(show_data and (number == 1 or stage.task != stages[number - 2].task))
            session.run()
        student = recipe.later_student(directory.path)


def _check_finished(run: RunDirectory, stage: Recipe) -> None:
    """Raise where the data or the teacher changed since a stage was finished."""
    if not run.data.is_file():
        return
    try:
        now = data_named_by(stage)
    except LimbeckError as error:
        logger.warning("Whether the data of %s are still the same cannot be told: %s", run.path, error)
    else:
        check_not_changed(run, now)
