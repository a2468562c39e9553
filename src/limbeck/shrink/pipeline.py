"""Make a small model in service of a table and a model, in one go: teacher, students, choice, export, summary.

Every training is a run directory and every decision is written down: started again, it goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from limbeck._internal.files import remove_leftovers, write_text
from limbeck._internal.locks import locked
from limbeck.errors import RunError
from limbeck.models.loading import load_config
from limbeck.recipes.recipe import Recipe, load_recipe, load_task_block
from limbeck.runs.files import MALFORMED, read_mapping
from limbeck.shrink.budget import Budget
from limbeck.shrink.forms import export_forms, measure_forms
from limbeck.shrink.plan import Request, Workspace, epochs_that_fit, measure_epoch_seconds
from limbeck.shrink.scores import TEACHER_NAME, ModelScores
from limbeck.shrink.size import choose_size
from limbeck.shrink.summary import summary_page
from limbeck.shrink.teacher import reason_to_fine_tune
from limbeck.study.description import Study
from limbeck.study.engines import InProcess
from limbeck.study.plan import Plan
from limbeck.study.runner import run_study
from limbeck.study.watch import watching
from limbeck.tasks import load_task
from limbeck.tasks.task import Task
from limbeck.training.execute import RunDirectory, execute

logger = logging.getLogger("limbeck")

SUMMARY = "summary.json"
PAGE = "summary.md"
# The labels alone, which everything else must beat; then the teacher's predictions, and two kinds of its hidden states.
TRIED_METHODS = ("ft", "kd", "cka", "fcd")
_TEACHER_SHARE, _TRAINING_SHARE, _STUDENTS_LEAST = 0.35, 0.8, 0.3  # of the time; the rest is for export and measuring
_SLOWER = 1.3  # what a step of these methods takes against one of ft, the teacher's features being cached
_RATE, _WIDTH, _MOST_RATE = 8e-5, 768, 5e-4  # the learning rate of models so wide; narrower ones bear more
_STUDENT_RATE = 2.0  # students, which lost layers, have more to learn
_MANY_ROWS = 1000


def shrink(request: Request, output: Path) -> dict[str, Any]:
    """Make the small model that was asked for: do all that is missing in ``output``, and return its summary."""
    budget = Budget.parse(request.budget)
    block = load_task_block(request.task_block())
    task = load_task(block.name, **block.options)
    request.check(task)
    workspace = Workspace(output, request)
    if (done := _finished(output)) is not None:
        logger.info("%s is finished already.", output)
        return done
    with locked(output):
        remove_leftovers(output)
        teacher = _make_teacher(request, task, workspace)
        _choose_student(request, task, teacher, budget, workspace)
        runs, failed = _train_students(request, task, teacher, workspace)
        scores = ModelScores.of(runs, {name: task.split("validation")[name][:] for name in task.text_columns})
        method = scores.best(list(runs))
        logger.info("Step 4 of 4: %s is best; its student is exported and measured.", method)
        rows = len(task.split("validation"))
        paths, refused = export_forms(runs[method], teacher, request.task_block(), rows, output)
        summary = _summarise(task, workspace, scores, runs, failed, method) | {"not_exported": refused}
        summary |= measure_forms(paths, scores, method, task, runs[method], budget, workspace.plan["student"]["length"])
        write_text(output / PAGE, summary_page(summary))
        write_text(output / SUMMARY, json.dumps(summary, indent=1) + "\n")
        if not failed:  # the teacher's features have served, and are large
            shutil.rmtree(output / "study" / "caches", ignore_errors=True)
    return summary


def _finished(output: Path) -> dict[str, Any] | None:
    """Return the summary, if nothing is left to do; methods that failed are tried again."""
    if not (output / SUMMARY).is_file():
        return None
    try:
        summary = read_mapping(output / SUMMARY)
        return None if any("failed" in entry for entry in summary["methods"]) else summary
    except (RunError, *MALFORMED) as error:
        logger.warning("%s: %s It is made again.", output / SUMMARY, error)
        return None


def _seconds(request: Request) -> float:
    return 60 * request.minutes


def _make_teacher(request: Request, task: Task, workspace: Workspace) -> str:
    """Return the model itself if it knows the task, else what fine-tuning makes of it."""
    if "teacher" not in workspace.plan:
        why = reason_to_fine_tune(request.model, task)
        if not why:
            about = {"about": f"{Path(request.model).name}, as it was given", "epochs": None, "seconds": 0.0}
        else:
            of_one = measure_epoch_seconds(_teacher_recipe(request, task, 1.0))
            epochs = epochs_that_fit(_TEACHER_SHARE * _seconds(request), of_one)
            words = f"{Path(request.model).name} ({why}), fine-tuned for {epochs:g} epochs"
            about = {"about": words, "epochs": epochs, "seconds": epochs * of_one}
        workspace.decide("teacher", about)
    plan = workspace.plan["teacher"]
    if plan["epochs"] is None:
        logger.info("Step 1 of 4: the teacher is %s.", plan["about"])
        return request.model
    logger.info("Step 1 of 4: the teacher is %s: about %s.", plan["about"], _duration(plan["seconds"]))
    recipe = _teacher_recipe(request, task, plan["epochs"])
    return str(execute(recipe, workspace.folder / "teacher", resume=True).path)


def _choose_student(request: Request, task: Task, teacher: str, budget: Budget, workspace: Workspace) -> None:
    """Decide how deep students are and how long each method trains: an equal share of the time the teacher left."""
    if "student" not in workspace.plan:
        size = choose_size(teacher, task, budget)
        of_one = _SLOWER * measure_epoch_seconds(_student_recipe(request, task, teacher, size["layers"]))
        whole = _seconds(request)
        share = max(_TRAINING_SHARE * whole - workspace.plan["teacher"]["seconds"], _STUDENTS_LEAST * whole)
        epochs = epochs_that_fit(share / len(TRIED_METHODS), of_one)
        workspace.decide("student", size | {"epochs": epochs, "seconds": len(TRIED_METHODS) * epochs * of_one})
    plan = workspace.plan["student"]
    logger.info("Step 2 of 4: students keep the first %d of %d layers.", plan["layers"], plan["of_layers"])


def _teacher_recipe(request: Request, task: Task, epochs: float) -> Recipe:
    values = {"task": request.task_block(), "student": {"model": request.model}, "method": {"name": "ft"}}
    return load_recipe(values=values | {"train": _train_block(request, task, epochs, 1.0), "seed": request.seed})


def _train_block(request: Request, task: Task, epochs: float, faster: float) -> dict[str, Any]:
    width = load_config(request.model).hidden_size
    return {
        "epochs": epochs,
        "batch_size": 32 if len(task.split("train")) >= _MANY_ROWS else 16,
        "learning_rate": float(f"{faster * min(_MOST_RATE, _RATE * (_WIDTH / width) ** 2):.2g}"),
        "eval_strategy": "no",
        "save_steps": 0.5,  # of all steps: what a killed run loses at most
    }


def _study(request: Request, task: Task, teacher: str, layers: int, epochs: float) -> Study:
    return Study.model_validate(
        {
            "tasks": ["table"],
            "task": request.task_block(),
            # confirmed, because step 1 looked at the teacher
            "teacher": {"fine_tuned": teacher, "cache_dtype": "float16", "confirmed": True},
            "student": {"from": "teacher", "keep": f"first:{layers}"},
            "train": _train_block(request, task, epochs, _STUDENT_RATE),
            "methods": list(TRIED_METHODS),
            "seeds": [request.seed],
            "rivals": False,  # they would take the students' time
        }
    )


def _student_recipe(request: Request, task: Task, teacher: str, layers: int) -> Recipe:
    """Return the recipe that fine-tunes such a student, to time it."""
    values = _study(request, task, teacher, layers, 1.0).values("table", "ft", {}, request.seed, teacher, "off")
    return load_recipe(values=values)


def _train_students(
    request: Request, task: Task, teacher: str, workspace: Workspace
) -> tuple[dict[str, Path], dict[str, str]]:
    """Train a student by each method; return the runs by method, and why others failed."""
    plan = workspace.plan["student"]
    study = _study(request, task, teacher, plan["layers"], plan["epochs"])
    folder = workspace.folder / "study"
    about = (", ".join(TRIED_METHODS), f"{plan['epochs']:g}", _duration(plan["seconds"]))
    logger.info("Step 3 of 4: students by %s, %s epochs each: about %s.", *about)
    with watching(Plan(study, folder).count_jobs_left()) as watcher:
        results = run_study(study, folder, InProcess(), watcher)
    runs = {entry["label"]: folder / entry["runs"][0] for entry in results["entries"] if entry["runs"]}
    failed = {entry["label"]: entry["why"] for entry in results["entries"] if not entry["runs"]}
    if not runs:
        raise RunError(f"No student could be trained: {next(iter(failed.values()))} See {folder / 'failures'}.")
    return runs, failed


def _summarise(
    task: Task, workspace: Workspace, scores: ModelScores, runs: dict[str, Path], failed: dict[str, str], method: str
) -> dict[str, Any]:
    """Return the entries of the summary that the run directories tell."""
    entries: list[dict[str, Any]] = [
        {
            "method": name,
            "run": run.relative_to(workspace.folder).as_posix(),
            "chosen_by": scores.choosing_score(name),
            "score": scores.score(name),
            "agreement": scores.agreement(name),
        }
        for name, run in runs.items()
    ]
    results = RunDirectory(runs[method]).metrics()
    plan = workspace.plan["student"]
    return {
        "asked": workspace.plan["asked"],
        "metric": scores.metric,
        "rows": {"train": len(task.split("train")), **scores.counts()},
        "majority": _majority(task, scores),
        "teacher": workspace.plan["teacher"] | {"score": scores.score(TEACHER_NAME)},
        "student": {"method": method, "parameters": results["parameters"]}
        | {key: plan[key] for key in ("layers", "of_layers", "epochs")},
        "methods": entries + [{"method": name, "failed": why} for name, why in failed.items()],
        "against_teacher": scores.difference(method, TEACHER_NAME),
        "against_ft": scores.difference(method, "ft") if "ft" in runs and method != "ft" else None,
    }


def _majority(task: Task, scores: ModelScores) -> float:
    """Return the score of always giving the training data's most frequent answer, on the reported rows."""
    rows = task.split("validation").select(scores.halves.reported).rename_column("label", "labels")
    return task.majority({"labels": task.split("train")["label"]}, rows)[scores.metric]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
