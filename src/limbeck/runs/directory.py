"""Name the files of a run directory and of a study's folder; nothing else spells these names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.errors import RunError
from limbeck.runs.files import COPY_AGAIN, is_empty, read_mapping

_RIVALS, _STAGE = "rivals", "stage-"
RESULTS = "the results of a run"  # for errors about the file that should hold them


@dataclass(frozen=True)
class RunDirectory:
    """Point to what a run leaves behind: the only thing that later commands read."""

    path: Path

    @property
    def name(self) -> str:
        """Name the run as its folder is named; one of its earlier stages with both names: ``rte-tinybert/stage-1``."""
        path = self.path.resolve()
        return f"{path.parent.name}/{path.name}" if path.name.startswith(_STAGE) else path.name

    @property
    def recipe(self) -> Path:
        """Locate the fully resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def environment(self) -> Path:
        """Locate the versions, device and commit that the results may depend on."""
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        """Locate the fingerprint of the rows, labels and teacher that the run was made with."""
        return self.path / "data.json"

    @property
    def layer_choice(self) -> Path:
        """Locate the sets of layers that were compared where the student's layers were chosen by measuring."""
        return self.path / "layers.json"

    @property
    def history(self) -> Path:
        """Locate the log of the training, one JSON object a line."""
        return self.path / "history.jsonl"

    @property
    def relation_points(self) -> Path:
        """Locate the relation difference at some steps of the training, where it was asked for."""
        return self.path / "relations.json"

    @property
    def start(self) -> Path:
        """Locate what the student's head was before the first step."""
        return self.path / "start.json"

    @property
    def results(self) -> Path:
        """Locate the scores and costs; written last, so that the file marks a finished run."""
        return self.path / "metrics.json"

    @property
    def pruned(self) -> Path:
        """Locate what stands in the place of the results where a run was not worth finishing."""
        return self.path / "pruned.json"

    @property
    def student(self) -> Path:
        """Locate the trained model, a plain Hugging Face checkpoint."""
        return self.path / "student"

    @property
    def student_config(self) -> Path:
        """Locate the trained model's settings, its labels among them."""
        return self.student / "config.json"

    @property
    def checkpoints(self) -> Path:
        """Locate the folder of the checkpoints that serve to resume."""
        return self.path / "checkpoints"

    @property
    def teacher_cache(self) -> Path:
        """Locate the teacher's features, which are kept while the run needs them."""
        return self.path / "teacher-cache"

    @property
    def prepared(self) -> Path:
        """Locate what terms computed before training, so that a resumed run need not start over."""
        return self.path / "prepared"

    @property
    def bad_batch(self) -> Path:
        """Locate the batch whose loss was not a number."""
        return self.path / "bad-batch"

    @property
    def analysis(self) -> Path:
        """Locate the folder of what `limbeck analyze` measured."""
        return self.path / "analysis"

    @property
    def analysis_values(self) -> Path:
        """Locate the numbers that were measured; written last, so that the file marks a finished analysis."""
        return self.analysis / "analysis.json"

    @property
    def analysis_arrays(self) -> Path:
        """Locate the arrays that were measured."""
        return self.analysis / "arrays.npz"

    @property
    def tensorboard(self) -> Path:
        """Locate the folder of TensorBoard's files, where the recipe asks for them."""
        return self.path / "tensorboard"

    @property
    def rivals(self) -> Path:
        """Locate the folder of the trivial models that the run is compared with."""
        return self.path / _RIVALS

    def predictions(self, split: str = "") -> Path:
        """Locate the predictions for the validation data, or for another of the task's splits."""
        return self.path / (f"predictions-{split}.parquet" if split else "predictions.parquet")

    def other_predictions(self) -> dict[str, Path]:
        """Find the predictions for splits beside the validation data, by split."""
        files = sorted(self.path.glob("predictions-*.parquet"))
        return {file.stem.removeprefix("predictions-"): file for file in files}

    def stage(self, number: int) -> RunDirectory:
        """Point to an earlier stage, counted from 1; the last stage is the run itself."""
        return RunDirectory(self.path / f"{_STAGE}{number}")

    def stages(self) -> list[RunDirectory]:
        """Find the earlier stages that are there, in their order."""
        numbers = [folder.name.removeprefix(_STAGE) for folder in self.path.glob(f"{_STAGE}*")]
        return [self.stage(number) for number in sorted(int(number) for number in numbers if number.isdecimal())]

    def holds(self, file: Path) -> bool:
        """Tell whether a file is a part of this run, if there is one."""
        before = (self.recipe, self.environment, self.data, self.layer_choice, self.start)
        files = (*before, self.history, self.results, self.pruned)
        working = (self.checkpoints, self.teacher_cache, self.prepared, self.bad_batch)
        folders = (self.student, *working, self.analysis, self.tensorboard, self.rivals)
        predictions = (self.predictions(), *self.other_predictions().values())
        own = file in (*files, *predictions) or any(folder in file.parents for folder in folders)
        return own and self.exists

    @property
    def exists(self) -> bool:
        """Tell whether a run has begun here."""
        return self.recipe.is_file() or self.results.is_file()

    @property
    def finished(self) -> bool:
        """Tell whether the run has results, and files that hold something."""
        return not self.why_unfinished()

    def why_unfinished(self) -> str:
        """Say what a finished run would have and this one has not; nothing where it is finished.

        A student may be missing, because studies remove those that are not needed.
        """
        if not self.results.is_file():
            return f"it has no {self.results.name} yet"
        try:
            read_mapping(self.results, RESULTS)
            empty = [file for file in (self.recipe, *self._student_files()) if file.is_file() and is_empty(file)]
        except OSError as error:  # to run it again would write over what may be whole
            raise RunError(
                f"{error.filename or self.results} cannot be read: {error.strerror}. Nothing was changed. See to the "
                "disk or to the rights, then try again."
            ) from error
        except RunError as error:
            return str(error).removesuffix(f". {COPY_AGAIN}")
        return f"{empty[0]} is empty" if empty else ""

    def _student_files(self) -> list[Path]:
        files = list(self.student.iterdir()) if self.student.is_dir() else []
        return sorted(file for file in files if file.suffix in (".json", ".safetensors"))

    @property
    def was_pruned(self) -> bool:
        """Tell whether the run was ended because it was not worth finishing."""
        return self.pruned.is_file() and not is_empty(self.pruned)

    def metrics(self) -> dict[str, Any]:
        """Read the results of a finished run."""
        return read_mapping(self.results, RESULTS)


@dataclass(frozen=True)
class StudyDirectory:
    """Point to the files of a study's folder."""

    path: Path

    def holds(self, file: Path) -> bool:
        """Tell whether a file says what this study is or found, if there is one."""
        return (file in (self.description, self.results) or self.rivals in file.parents) and self.exists

    @property
    def exists(self) -> bool:
        """Tell whether a study has begun here."""
        return self.description.is_file()

    @property
    def finished(self) -> bool:
        """Tell whether the study has results."""
        return self.results.is_file() and not is_empty(self.results)

    @property
    def description(self) -> Path:
        """Locate the study as it was asked for."""
        return self.path / "study.yaml"

    @property
    def results(self) -> Path:
        """Locate what the study found: entries, chosen settings, run directories."""
        return self.path / "results.json"

    @property
    def rivals(self) -> Path:
        """Locate the folder of the trivial models that the students are compared with, by task."""
        return self.path / _RIVALS

    @property
    def layer_choices(self) -> Path:
        """Locate the folder of the choices of layers that runs with the same teacher and data share."""
        return self.path / "layers"

    @property
    def runs(self) -> Path:
        """Locate the folder of the run directories, teachers left out."""
        return self.path / "runs"

    def finished_runs(self) -> list[RunDirectory]:
        """Find the runs that have results, by name."""
        folders = sorted(self.runs.iterdir()) if self.runs.is_dir() else []
        return [run for run in map(RunDirectory, folders) if run.finished]
