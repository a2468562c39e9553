"""Make the jobs that a study stands for, and say where in its folder each of them leaves what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from limbeck._internal.files import file_name
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.recipes.files import set_value
from limbeck.recipes.recipe import load_recipe
from limbeck.runs.directory import StudyDirectory
from limbeck.study.chains import all_points, first_point, waits_for
from limbeck.study.description import GridPoint, SearchSpace, Study, run_key
from limbeck.study.jobs import CacheJob, TrainJob, WeightsPolicy
from limbeck.study.rivals_job import RivalsJob
from limbeck.study.search import Trial, best_trial


@dataclass(frozen=True)
class _Teacher:
    name: str  # what stands for it in the key of a run: its own key, or the name it was given by
    path: str
    job: TrainJob | None  # None: it is fine-tuned already
    point: GridPoint  # what its search set


class Plan:
    """Make the jobs of a study in its folder, and count them. Nothing is run or written."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self._candidates = {task: self._make_teachers(task) for task in study.tasks}
        self._teachers = {task: candidates[0] for task, candidates in self._candidates.items()}
        self._caches: dict[str, CacheJob] = {}
        for task in study.tasks:
            if all(job.finished() for job in self.teacher_jobs(task)):
                self.choose_teacher(task)

    def teacher_job(self, task: str) -> TrainJob | None:
        """Return the job that makes a task's teacher; None where one is given. Of several, the one that was chosen."""
        return self._teachers[task].job

    def teacher_jobs(self, task: str) -> list[TrainJob]:
        """Return the jobs among which a task's teacher is chosen; none where one is given."""
        return [teacher.job for teacher in self._candidates[task] if teacher.job is not None]

    def choose_teacher(self, task: str) -> list[Trial]:
        """Take the finished teacher with the best score on dev from now on; return what each scored."""
        trials = []
        for teacher in self._candidates[task]:
            if teacher.job is None:
                return []
            done = teacher.job.directory.finished
            trials.append(Trial(teacher.point, teacher.job.directory.metrics()["score"] if done else None))
        finished = [job.directory for job in self.teacher_jobs(task) if job.directory.finished]
        if finished:
            best = best_trial(trials, finished[0].metrics()["metric"] not in SMALLER_IS_BETTER)
            if best is not None:
                self._teachers[task] = self._candidates[task][trials.index(best)]
        return trials

    def teacher_point(self, task: str) -> GridPoint:
        """Return the settings with which a task's teacher was chosen; none where nothing was searched."""
        return self._teachers[task].point

    def teacher_shape(self, task: str) -> str:
        """Return a model of the teacher's shape that is there before the teacher is."""
        job = self.teacher_job(task)
        return self._teachers[task].path if job is None else str(job.values["student"]["model"])

    def cache_job(self, task: str) -> CacheJob | None:
        """Return the job that keeps what a task's teacher computes, for all methods; None where nothing is kept."""
        if self.study.teacher.cache != "auto":
            return None
        name = file_name(self._teachers[task].name, task)
        if name not in self._caches:
            self._caches[name] = self._make_cache_job(task)
        return self._caches[name]

    def rivals_job(self, task: str) -> RivalsJob | None:
        """Return the job that makes the linear models which a task's students must beat; None where none are wanted."""
        study, teacher = self.study, self._teachers[task]
        if not study.rivals or not study.labels(task):
            return None
        recipes = [
            study.values(task, label, first_point(study, task, label), study.seeds[0], teacher.path, "off")
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
        title = " ".join([task, label, *_settings(point), f"seed {seed}"])
        key = run_key(identity)
        return TrainJob(key, title, str(self.folder), values, str(StudyDirectory(self.folder).runs / key), weights)

    def searches(self, space: SearchSpace) -> bool:
        """Tell whether there is more than one setting to choose from."""
        return (self.study.search.sampler == "tpe" and bool(space)) or len(all_points(space)) > 1

    def count_settings(self, task: str, label: str) -> list[int]:
        """Count the settings that are tried in each step of a search; none where nothing is searched."""
        search = self.study.search
        steps = [space for space in self.study.steps(task, label) if self.searches(space)]
        return [search.trials if search.sampler == "tpe" else len(all_points(space)) for space in steps]

    def count_runs(self, task: str, label: str) -> int:
        """Count the runs of a method on a task."""
        study, settings = self.study, sum(self.count_settings(task, label))
        reported = set(study.seeds) if study.has_row(label) else set()
        if settings:
            reported -= set(study.choosing_seeds)
        return settings * len(study.choosing_seeds) + len(reported)

    def count_jobs_left(self) -> int:
        """Count the jobs still to be done, as far as they can be known before settings are chosen."""
        study = self.study
        jobs = [
            job
            for task in study.tasks
            for job in (*self.teacher_jobs(task), self.cache_job(task), self.rivals_job(task))
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
        settings = self.count_settings(task, label)
        # what they are is known when those before them are done
        if settings and (study.search.sampler == "tpe" or len(settings) > 1 or waits_for(study, task, label)):
            ours = file_name(task, study.method(task, label), "s")
            return [folder for name, folder in there.items() if re.fullmatch(rf"{re.escape(ours)}\d+-\w+", name)]
        choosing = study.choosing_seeds if settings else []
        first = first_point(study, task, label)
        points = [first | point for space in study.steps(task, label) or [{}] for point in all_points(space) if there]
        jobs = [
            self.train_job(task, label, point, seed, "kept") for point in points for seed in (*choosing, *study.seeds)
        ]
        return [there[key] for key in dict.fromkeys(job.key for job in jobs) if key in there]

    def _make_teachers(self, task: str) -> list[_Teacher]:
        points = all_points(self.study.teacher_space(task))
        # one of several that lost may have lost its weights too
        weights: WeightsPolicy = "needed" if len(points) == 1 else "kept"
        teachers = []
        for point in points:
            values = self.study.teacher_values(task, point)
            if values is None:
                given = self.study.given_teacher(task)
                return [_Teacher(given, given, None, {})]
            key = run_key(load_recipe(values=values))
            folder = str(self.folder / "teachers" / key)
            title = " ".join([task, "teacher", *_settings(point)])
            job = TrainJob(key, title, str(self.folder), values, folder, weights)
            teachers.append(_Teacher(key, folder, job, point))
        return teachers

    def _make_cache_job(self, task: str) -> CacheJob:
        study, teacher = self.study, self._teachers[task]
        recipes = {}
        for label in study.labels(task):
            point = first_point(study, task, label)
            values = study.values(task, label, point, study.seeds[0], teacher.path, "auto")
            recipes[label] = (values, self.count_runs(task, label))
        name = file_name(teacher.name, *([] if teacher.job else [task]))
        title = f"{task} teacher's features"
        return CacheJob(f"cache-{name}", title, str(self.folder), recipes, str(self.folder / "caches" / name))


def _settings(point: GridPoint) -> list[str]:
    """Write the settings of a search for people: ``temperature=5``."""
    return [f"{name.rpartition('.')[2]}={value}" for name, value in point.items()]
