"""Report a training to the loggers that transformers knows: the recipe as settings, and a run of its own for each.

What is logged, the loss with its terms and the dev scores, is what goes into the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.integrations import TensorBoardCallback

from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory


class ReportedArguments(TrainingArguments):
    """Take these arguments for the recipe that they were made from, where a logger writes down a run's settings."""

    reported: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the recipe by the names that they have on the command line."""
        return self.reported


def report_recipe(arguments: ReportedArguments, recipe: Recipe) -> None:
    """Let loggers show this recipe, settings of None left out."""
    arguments.reported = _by_path(recipe.model_dump(mode="json", by_alias=True, exclude_none=True))


def _by_path(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten ``{"method": {"name": "kd"}}`` to ``{"method.name": "kd"}``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _by_path(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def keep_events(trainer: Trainer, run: RunDirectory) -> None:
    """Have TensorBoard's files written into the run, unless TENSORBOARD_LOGGING_DIR names another folder."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(run.tensorboard)


@contextmanager
def own_runs(services: Sequence[str]) -> Iterator[None]:
    """End the runs that services begin inside the block, so that the next training of this process has its own.

    W&B never ends one by itself, and MLflow does not where a training fails. One that was open before goes on.
    """
    before = {name: _open_run(name) for name in services}
    failed = True
    try:
        yield
        failed = False
    finally:
        for name, run in before.items():
            if run is None and _open_run(name) is not None:
                _end_run(name, failed)


def _open_run(service: str) -> Any:
    if service == "wandb":
        import wandb

        return wandb.run
    if service == "mlflow":
        import mlflow

        return mlflow.active_run()
    return None


def _end_run(service: str, failed: bool) -> None:
    if service == "wandb":
        import wandb

        wandb.finish(exit_code=int(failed))
    else:
        import mlflow

        mlflow.end_run("FAILED" if failed else "FINISHED")
