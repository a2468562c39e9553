"""Make the jobs that a study stands for, and say where in its folder each of them leaves what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from limbeck._internal.files import file_name
from limbeck.recipes.files import set_value
from limbeck.recipes.recipe import load_recipe
from limbeck.runs.directory import StudyDirectory
from limbeck.study.description import GridPoint, Study, run_key
from limbeck.study.jobs import CacheJob, TrainJob, WeightsPolicy
from limbeck.study.rivals_job import RivalsJob


@dataclass(frozen=True)
class _Teacher:
    name: str  # what stands for it in the key of a run: its own key, or the name it was given by
    path: str
    job: TrainJob | None  # None: it is fine-tuned already


class Plan:
    """Make the jobs of a study in its folder, and count them. Nothing is run or written."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self._teachers = {task: self._make_teacher(task) for task in study.tasks}
        self._caches = {task: self._make_cache_job(task) for task in study.tasks if study.teacher.cache == "auto"}

    def teacher_job(self, task: str) -> TrainJob | None:
        """Return the job that makes a task's teacher; None where one is given."""
        return self._teachers[task].job

    def teacher_shape(self, task: str) -> str:
        """Return a model of the teacher's shape that is there before the teacher is."""
        job = self.teacher_job(task)
        return self._teachers[task].path if job is None else str(job.values["student"]["model"])

    def cache_job(self, task: str) -> CacheJob | None:
        """Return the job that keeps what a task's teacher computes, for all methods; None where nothing is kept."""
        return self._caches.get(task)

    def rivals_job(self, task: str) -> RivalsJob | None:
        """Return the job that makes the linear models which a task's students must beat; None where none are wanted."""
        study, teacher = self.study, self._teachers[task]
        if not study.rivals or not study.labels(task):
            return None
        recipes = [
            study.values(task, label, self.first_point(task, label), study.seeds[0], teacher.path, "off")
            for label in study.labels(task)
        ]
        return RivalsJob(
            key=f"rivals-{file_name(task)}",
            title=f"{task} rivals",
            study=str(self.folder),
            name=task,
            task=recipes[0]["task"],
            students=[values["student"] for values in recipes],
            teacher=teacher.path,
            pretrained=None if teacher.job is None else str(teacher.job.values["student"]["model"]),
        )

    def train_job(self, task: str, label: str, point: GridPoint, seed: int, weights: WeightsPolicy) -> TrainJob:
        """Return the job of one run. Its key has the teacher's name for the path, so that a study can be moved."""
        study, teacher, cache = self.study, self._teachers[task], self.cache_job(task)
        identity = load_recipe(values=study.values(task, label, point, seed, teacher.name, "off"))
        values = study.values(task, label, point, seed, teacher.path, "off" if cache is None else "auto")
        if cache is not None and cache.serves(label, values):
            set_value(values, "teacher.cache", cache.folder)
        settings = [f"{name.rpartition('.')[2]}={value}" for name, value in point.items()]
        title = " ".join([task, label, *settings, f"seed {seed}"])
        key = run_key(identity)
        return TrainJob(key, title, str(self.folder), values, str(StudyDirectory(self.folder).runs / key), weights)

    def searches(self, task: str, label: str) -> bool:
        """Tell whether there is more than one setting to choose from."""
        study = self.study
        tpe = study.search.sampler == "tpe" and bool(study.search_space(task, label))
        return tpe or len(study.points(task, label)) > 1

    def count_settings(self, task: str, label: str) -> int:
        """Count the settings that are tried."""
        if not self.searches(task, label):
            return 1
        search = self.study.search
        return search.trials if search.sampler == "tpe" else len(self.study.points(task, label))

    def count_runs(self, task: str, label: str) -> int:
        """Count the runs of a method on a task."""
        study = self.study
        if not self.searches(task, label):
            return len(study.seeds)
        only_reported = set(study.seeds) - set(study.choosing_seeds)
        return self.count_settings(task, label) * len(study.choosing_seeds) + len(only_reported)

    def count_jobs_left(self) -> int:
        """Count the jobs still to be done, as far as they can be known before settings are chosen."""
        study = self.study
        jobs = [
            job
            for task in study.tasks
            for job in (self.teacher_job(task), self.cache_job(task), self.rivals_job(task))
            if job is not None
        ]
        runs = sum(self.count_runs(task, label) for task in study.tasks for label in study.labels(task))
        # of any settings: to know those of a large grid takes minutes
        finished = len(StudyDirectory(self.folder).finished_runs())
        return max(1, runs - finished) + sum(not job.finished() for job in jobs)

    def finished_runs(self, task: str, label: str) -> list[Path]:
        """Return the folders of a method's finished runs, without those of other settings where settings are known."""
        study = self.study
        there = {run.path.name: run.path for run in StudyDirectory(self.folder).finished_runs()}
        if study.search.sampler == "tpe" and self.searches(task, label):
            ours = file_name(task, study.method(task, label), "s")
            return [folder for name, folder in there.items() if re.fullmatch(rf"{re.escape(ours)}\d+-\w+", name)]
        choosing = study.choosing_seeds if self.searches(task, label) else []
        points = study.points(task, label) if there else []
        jobs = [
            self.train_job(task, label, point, seed, "kept") for point in points for seed in (*choosing, *study.seeds)
        ]
        return [there[key] for key in dict.fromkeys(job.key for job in jobs) if key in there]

    def first_point(self, task: str, label: str) -> GridPoint:
        """Return settings as good as any to know what a method needs."""
        space = self.study.search_space(task, label)
        return {key: value[0] if isinstance(value, list) else value["low"] for key, value in space.items()}

    def _make_teacher(self, task: str) -> _Teacher:
        values = self.study.teacher_values(task)
        if values is None:
            given = self.study.given_teacher(task)
            return _Teacher(given, given, None)
        key = run_key(load_recipe(values=values))
        folder = str(self.folder / "teachers" / key)
        return _Teacher(key, folder, TrainJob(key, f"{task} teacher", str(self.folder), values, folder))

    def _make_cache_job(self, task: str) -> CacheJob:
        study, teacher = self.study, self._teachers[task]
        recipes = {}
        for label in study.labels(task):
            point = self.first_point(task, label)
            values = study.values(task, label, point, study.seeds[0], teacher.path, "auto")
            recipes[label] = (values, self.count_runs(task, label))
        name = file_name(teacher.name, *([] if teacher.job else [task]))
        title = f"{task} teacher's features"
        return CacheJob(f"cache-{name}", title, str(self.folder), recipes, str(self.folder / "caches" / name))
