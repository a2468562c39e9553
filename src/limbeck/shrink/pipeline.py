"""Make small models in service of a table and a model, in one go: teacher, students, race, export, summary.

Every training is a run directory and every decision is written down: started again, it goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.files import remove_leftovers, write_text
from limbeck._internal.locks import locked
from limbeck._internal.progress import muted_messages
from limbeck.errors import LimbeckError, ModelError, RunError
from limbeck.inference.logits import predict_logits
from limbeck.metrics import readable_score
from limbeck.models.families import blocks_of
from limbeck.models.kept_layers import layers_to_keep
from limbeck.models.layer_choice import block_influence, choice_sample, compare_layers, propose_layers
from limbeck.models.loading import load_config, load_fine_tuned, load_for_training, load_tokenizer, longest_input
from limbeck.recipes.recipe import load_recipe, load_task_block
from limbeck.rivals.frozen import frozen_rivals
from limbeck.rivals.rival import Rival
from limbeck.rivals.tfidf import tfidf_rival
from limbeck.runs.files import MALFORMED, read_mapping
from limbeck.shrink.budget import Budget
from limbeck.shrink.data import CHOOSING, REPORTED, divide, readable_labels, unlabelled_texts, with_teachers_labels
from limbeck.shrink.forms import export_forms, time_forms, time_rivals
from limbeck.shrink.layout import DATA, STUDENTS, SUMMARY, TEACHER
from limbeck.shrink.page import write_pages
from limbeck.shrink.plan import Request, Workspace
from limbeck.shrink.race import run_race
from limbeck.shrink.schedule import (
    RaceSchedule,
    depths_of,
    epochs_that_fit,
    fewer_depths,
    measure_cost,
    schedule_race,
)
from limbeck.shrink.scores import ModelScores
from limbeck.shrink.summary import Measured, summarise
from limbeck.shrink.teacher import TeacherFolders, reason_to_fine_tune, save_trimmed, train_teacher
from limbeck.shrink.trainings import Candidate, Trainings, fast_passes
from limbeck.study.halving import RaceResult
from limbeck.study.watch import readable_duration
from limbeck.tasks import load_task
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

_TEACHER_SHARE = 0.25  # of the time, for its steps
# seconds beside the race: rivals, timing, and for each depth the comparison of layers, the export and its checks
_RIVALS, _MEASURING, _EACH_DEPTH, _MOST_OTHERS = 45.0, 30.0, 22.0, 0.35  # ... at most this share of the time
_SAFETY = 0.93  # of the time left: steps are estimated from a few
_COMPARED_ON = 600  # rows: more change the choice of layers rarely
_TYPICAL, _LONG = 50, 95  # percentiles of the texts' lengths


def shrink(request: Request, output: Path) -> dict[str, Any]:
    """Make the small models that were asked for: do all that is missing in ``output``, and return its summary."""
    block = load_task_block(request.task_block())
    task = load_task(block.name, **block.options)
    request.check(task)
    more = unlabelled_texts(request, task)
    workspace = Workspace(output, request)
    if (done := _finished(output)) is not None:
        logger.info("%s is finished already.", output)
        return done
    with locked(output):
        remove_leftovers(output)
        logger.info("About %g minutes, of which a third or so are the teacher's.", request.minutes)
        workspace.begin()
        try:
            summary = _Pipeline(request, task, more, workspace).run()
        except LimbeckError:
            workspace.forget()
            raise
        write_pages(summary, output)
        write_text(output / SUMMARY, json.dumps(summary, indent=1) + "\n")
        if not summary["failed"]:  # the teacher's features have served, and are large
            shutil.rmtree(output / "race" / "caches", ignore_errors=True)
    return summary


def _finished(output: Path) -> dict[str, Any] | None:
    """Return the summary, if nothing is left to do; students that failed are tried again."""
    if not (output / SUMMARY).is_file():
        return None
    try:
        summary = read_mapping(output / SUMMARY)
        return None if summary["failed"] else summary
    except (RunError, *MALFORMED) as error:
        logger.warning("%s: %s It is made again.", output / SUMMARY, error)
        return None


@dataclass
class _Teacher:
    """Hold who teaches, in a folder, and how students are trained."""

    model: str
    depth: int
    trainings: Trainings


class _Pipeline:
    """Do the steps one after the other; what was decided before is not decided again."""

    def __init__(self, request: Request, task: Task, more: dict[str, list[str]], workspace: Workspace) -> None:
        self.more = more
        self.request, self.workspace, self.plan, self.folder = request, workspace, workspace.plan, workspace.folder
        self.began = time.monotonic()
        self.block = divide(request, task, self.folder / DATA)
        self.task = _load(self.block)

    def run(self) -> dict[str, Any]:
        """Return the summary of all that was made."""
        teacher = self._make_teacher()
        races = self._race(teacher)
        winners = {depth: race.winner.directory.path for depth, race in races.items() if race.winner is not None}
        logger.info("Step 4 of 4: %d students are exported and measured.", len(winners))
        rows = len(self.task.split(CHOOSING))
        trimmed = "why" not in self.plan["base"]
        paths, refused = export_forms(
            *(winners, teacher.model, self.request.model if trimmed else None),
            *(self.block, rows, self.folder / STUDENTS),
        )
        measured = self._measure(paths, teacher)
        failed = {key: why for race in races.values() for key, why in race.failed.items()}
        summary = summarise(self.request, self.plan, measured, races, winners, refused, self.folder)
        return summary | {"failed": failed, "seconds": round(time.monotonic() - self.began, 1)}

    def _left(self) -> float:
        return 60 * self.request.minutes - (time.monotonic() - self.began)

    def _make_teacher(self) -> _Teacher:
        """Trim the vocabulary; take the model itself if it knows the task, else what training makes of it."""
        name = Path(self.request.model).name
        if "base" not in self.plan:
            why = reason_to_fine_tune(self.request.model, self.task)
            given = (self.task.all_texts(split) for split in ("train", CHOOSING, REPORTED))
            texts = chain(*given, *self.more.values())
            base = save_trimmed(self.request.model, self.task, texts, not why, self.folder / "base")
            self.workspace.decide("base", base | {"why_fine_tuned": why})
        base = self.plan["base"]
        trainings = Trainings(self.block, *self._sizes(base["model"]))
        if "teacher" not in self.plan and base["why_fine_tuned"]:
            of_one = measure_cost(trainings.teacher(base["model"], 1.0)).epoch
            epochs = epochs_that_fit(_TEACHER_SHARE * 60 * self.request.minutes, of_one)
            words = f"{name} ({base['why_fine_tuned']}), with a fitted head, fine-tuned for {epochs:g} epochs"
            self.workspace.decide("teacher", {"about": words, "epochs": epochs, "seconds": epochs * of_one})
        elif "teacher" not in self.plan:
            about = {"about": f"{name}, as it was given", "epochs": None, "seconds": 0.0, "model": base["model"]}
            self.workspace.decide("teacher", about)
        plan = self.plan["teacher"]
        logger.info("Step 1 of 4: the teacher is %s: about %s.", plan["about"], readable_duration(plan["seconds"]))
        if "model" not in plan:
            recipe = trainings.teacher(base["model"], plan["epochs"])
            names = ("teacher-fitted", "teacher-run", "teacher")
            found = train_teacher(recipe, self.task, TeacherFolders(*(self.folder / name for name in names)))
            self.workspace.decide("teacher", plan | found)
        model = self.plan["teacher"]["model"]
        depth = len(blocks_of(load_fine_tuned(model, self.task)))
        if depth < 2:
            raise ModelError("The teacher has a single layer, so no layer can be removed. Choose a deeper model.")
        return _Teacher(model, depth, Trainings(self._students_block(model), *self._sizes(model)))

    def _sizes(self, model: str) -> tuple[int, int, int, int]:
        config = load_config(model)
        return config.hidden_size, config.num_hidden_layers, len(self.task.split("train")), self.request.seed

    def _students_block(self, teacher: str) -> dict[str, Any]:
        """Return the block that students train on: with the unlabelled rows, which the teacher labels."""
        count = len(next(iter(self.more.values())))
        if not count:
            return self.block
        file = self.folder / DATA / "taught.parquet"
        if file.is_file():
            return {**self.block, "train": str(file)}
        network, tokenizer = load_fine_tuned(teacher, self.task), load_tokenizer(teacher)
        length, _ = self.task.suggest_length(tokenizer, longest_input(network))
        encoded = encode(self.task.text_columns, _rows(self.more), tokenizer, length)
        logits = predict_logits(network, encoded, Collator(tokenizer), job="label the unlabelled rows")
        labels = readable_labels(self.task, self.task.predictions(logits))
        logger.info("%s rows without labels are labelled by the teacher, for the students.", f"{count:,}")
        return with_teachers_labels(self.block, self.more, labels, file)

    def _schedule(self, teacher: _Teacher) -> RaceSchedule:
        """Decide once which depths are tried, how many candidates of each, and how long."""
        if "race" not in self.plan:
            costs = {}
            for count in depths_of(teacher.depth):
                layers = tuple(layers_to_keep(f"spread:{count}", teacher.depth))
                like = Candidate(layers, teacher.depth, "ft")
                values = teacher.trainings.student(like, teacher.model, teacher.model, 1.0)
                costs[count] = measure_cost(load_recipe(values=values))
            features = (
                costs[depths_of(teacher.depth)[0]].epoch * 2 / 3
            )  # the teacher is twice as deep, and runs forward
            others = features + _RIVALS + _MEASURING + _EACH_DEPTH * len(fewer_depths(tuple(costs)))
            others = min(others, _MOST_OTHERS * 60 * self.request.minutes)
            schedule = schedule_race(costs, _SAFETY * (self._left() - others))
            self.workspace.decide("race", asdict(schedule) | {"costs": {str(n): asdict(c) for n, c in costs.items()}})
        plan = self.plan["race"]
        return RaceSchedule(tuple(plan["depths"]), plan["candidates"], tuple(plan["epochs"]), plan["seconds"])

    def _choose_layers(self, teacher: _Teacher, count: int) -> list[list[int]]:
        """Return which layers the deepest students may keep: the best set by what a fitted head makes of it, first.

        The others follow in the order in which they were proposed, the simple ones first: what is best before training
        need not be best after it.
        """
        logger.info("Step 2 of 4: which layers students of %d keep.", count)
        if "layers" not in self.plan:
            self._compare_layers(teacher, count)
        best, *others = (one["layers"] for one in self.plan["layers"]["sets"])
        simple = [layers_to_keep(f"{name}:{count}", teacher.depth) for name in ("ends", "spread")]
        return [best, *(layers for layers in simple if layers in others)]

    def _compare_layers(self, teacher: _Teacher, count: int) -> None:
        network, tokenizer = load_fine_tuned(teacher.model, self.task), load_tokenizer(teacher.model)
        length, _ = self.task.suggest_length(tokenizer, longest_input(network))
        collate = Collator(tokenizer, problem=self.task.problem)
        with muted_messages():
            # not the rows that train: the teacher knows their answers, which its first layers show it to have learned
            sample = choice_sample(self.task.encode("validation", tokenizer, length), self.task.problem, _COMPARED_ON)
        with fast_passes():
            influence = block_influence(network, Batches(sample, collate, 32))
        proposed = propose_layers(teacher.depth, count, influence)
        metric = self.task.metrics[0]
        with fast_passes():
            found = compare_layers(
                *(network, sample, collate, self.task.problem, proposed), metric=metric, rows=len(sample)
            )
        chosen, score = ", ".join(map(str, found[0].layers)), readable_score(metric, found[0].score)
        logger.info("%d of %d layers: %s (%s %s with a fitted head).", count, teacher.depth, chosen, metric, score)
        sets = [asdict(one) for one in found]
        self.workspace.decide("layers", {"of": teacher.depth, "influence": influence, "sets": sets})

    def _race(self, teacher: _Teacher) -> dict[int, RaceResult]:
        """Train students until the best of each depth is known."""
        schedule = self._schedule(teacher)
        sets = self._choose_layers(teacher, schedule.depths[0])
        logger.info(
            "Step 3 of 4: students of %s layers, %d candidate%s each, %s epochs: about %s.",
            *(", ".join(map(str, schedule.depths)), schedule.candidates, "s" * (schedule.candidates > 1)),
            *(", ".join(f"{epochs:g}" for epochs in schedule.epochs), readable_duration(schedule.seconds)),
        )
        races, layers = run_race(schedule, sets, teacher.trainings, teacher.model, self.task, self.folder / "race")
        decisions = {str(depth): race.decisions() for depth, race in races.items()}
        kept = {str(depth): kept for depth, kept in layers.items()}
        self.workspace.decide("race", self.plan["race"] | {"decisions": decisions, "layers": kept})
        return races

    def _measure(self, paths: dict[str, Path], teacher: _Teacher) -> Measured:
        """Score and time every model and the rivals on the rows that chose nothing."""
        tokenizer = load_tokenizer(teacher.model)
        cut, _ = self.task.suggest_length(tokenizer, longest_input(load_fine_tuned(teacher.model, self.task)))
        scores = ModelScores(self.task, cut)
        for name, path in paths.items():
            scores.add_model(name, path)
        budget = Budget.parse(self.request.budget) if self.request.budget is not None else None
        percentile = _LONG if budget is not None and budget.ratio is None else _TYPICAL
        length = int(np.percentile(self.task.lengths("train", tokenizer), percentile, method="higher"))
        length = min(length, cut)
        figures, conditions = time_forms(paths, length)
        rivals = self._rivals(teacher)
        answering = {rival.name: rival.predict for rival in rivals}
        timings = time_rivals(answering, self.task, paths[TEACHER], figures[TEACHER], length)
        for rival in rivals:
            scores.add_rival(rival.name, rival.predict)
            about: dict[str, Any] = {"form": "linear", "parameters": rival.parameters, "about": rival.about}
            figures[rival.name] = about | timings[rival.name]
        return Measured(scores, figures, [rival.name for rival in rivals], length, budget, conditions)

    def _rivals(self, teacher: _Teacher) -> list[Rival]:
        """Fit the trivial models that a student must beat; one that cannot be fitted is left out with a warning."""
        base = self.plan["base"]["model"]
        tokenizer = load_tokenizer(base)
        found: list[Rival] = []
        try:
            with muted_messages(), fast_passes():
                found.append(tfidf_rival(self.task))
                network, _ = load_for_training(base, self.task, tokenizer)
                layers = sorted({self.plan["race"]["depths"][0], teacher.depth})
                found += frozen_rivals(self.task, network, tokenizer, layers, name=Path(self.request.model).name)
        except LimbeckError as error:
            logger.warning("A linear rival is left out: %s", error)
        return found


def _load(block: dict[str, Any]) -> Task:
    loaded = load_task_block(block)
    return load_task(loaded.name, **loaded.options)


def _rows(columns: dict[str, list[str]]) -> Any:
    from limbeck.tasks.task import make_split

    return make_split("unlabelled", {"id": list(range(len(next(iter(columns.values()))))), **columns})
