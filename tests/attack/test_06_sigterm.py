"""Send SIGTERM at exact moments: every command ends with status 143 and one message, and goes on as if nothing was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.saved_runs import assert_same_run, read_json
from helpers.signals import signal_in, signals_put_back
from helpers.tiny_recipes import distill_words, recipe_values, table_task, table_words

from limbeck.shrink.schedule import RaceSchedule

pytestmark = pytest.mark.chaos
STEP = "limbeck.distillation.objective.Objective.forward"
TRAIN = {"max_steps": 4, "batch_size": 16, "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 2}
TRAIN |= {"lr_scheduler_type": "constant", "learning_rate": 1e-3}  # so that one step more would show


@pytest.fixture(autouse=True)
def own_handlers(quick_collection):
    with signals_put_back():
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory, table_files, teacher_folder):
    """Write a recipe and a study with a grid, and do both without a break."""
    from helpers.in_process import run_command

    home = tmp_path_factory.mktemp("whole")
    recipe = recipe_values(table_files, teacher_folder, "fcd", train=TRAIN)
    recipe["teacher"]["cache"] = "features"  # where the command runs
    (home / "recipe.yaml").write_text(json.dumps(recipe))
    study = {
        "tasks": ["table"],
        "task": table_task(table_files),
        "teacher": {"fine_tuned": str(teacher_folder)},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 3, "batch_size": 16},
        "methods": {"ft": None, "kd": {"grid": {"method.temperature": [2, 5]}}},
        "rivals": False,
        "seeds": [1, 2],
    }
    (home / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        assert run_command("distill", "recipe.yaml", "-o", "run")[0] == 0
        assert run_command("study", "study.yaml", "-o", "study")[0] == 0
    return home


def hidden(folder):
    """List temporary names; the lock of a cache is none."""
    return [file.name for file in folder.rglob(".*") if file.name != ".lock"]


BETWEEN = ("load_data", "answer_validation", "replacing_folder", "write_results")


@pytest.mark.parametrize(
    ("moment", "call"),
    [
        ("limbeck.distillation.feature_cache.FeatureCache.fill", 1),
        (STEP, 3),
        (STEP, 4),  # the last step
        ("limbeck.training.session.answer_validation", 2),  # after the last step
        *(
            pytest.param(moment, 1, marks=pytest.mark.slow)
            for moment in (STEP, *(f"limbeck.training.session.{name}" for name in BETWEEN))
        ),
    ],
)
def test_a_training_stops_at_any_moment_and_goes_on_to_the_same(moment, call, home, command, tmp_path):
    with signal_in(moment, signal.SIGTERM, call):
        code, said = command("distill", home / "recipe.yaml", "-o", "run")
    assert code == 143 and "SIGTERM" in said and said.endswith("The same command with --resume continues run."), said
    assert said.count("Error:") == 1
    assert not (tmp_path / "run" / "metrics.json").exists() and not hidden(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    with signals_put_back():
        code, said = command("distill", home / "recipe.yaml", "-o", "run", "--resume")
    assert code == 0, said
    assert_same_run(tmp_path / "run", home / "run")


@pytest.mark.parametrize("step", [3, 4])
def test_a_checkpoint_is_kept_of_the_step_in_which_it_came(step, home, command, tmp_path):
    with signal_in(STEP, signal.SIGTERM, step):
        _, said = command("distill", home / "recipe.yaml", "-o", "run")
    assert f"after step {step} of 4; a checkpoint is kept" in said
    assert [file.name for file in (tmp_path / "run" / "checkpoints").iterdir()] == [f"checkpoint-{step}"]


@pytest.mark.parametrize("call", [5, *(pytest.param(call, marks=pytest.mark.slow) for call in (1, 8))])
def test_a_study_in_this_process_chooses_nothing_from_half_a_grid(call, home, command, tmp_path):
    with signal_in(STEP, signal.SIGTERM, call):
        code, said = command("study", home / "study.yaml", "-o", "study")
    assert code == 143 and said.endswith("The same command continues study."), said
    assert not (tmp_path / "study" / "results.json").exists()
    assert not (tmp_path / "study" / "failures").exists(), "a job that was stopped did not fail"
    with signals_put_back():
        code, said = command("study", home / "study.yaml", "-o", "study")
    assert code == 0, said
    assert read_json(tmp_path / "study" / "results.json") == read_json(home / "study" / "results.json")
    for run in (home / "study" / "runs").iterdir():
        if (run / "student").is_dir():
            assert_same_run(tmp_path / "study" / "runs" / run.name, run)


def test_a_failed_job_before_does_not_make_a_study_deaf(home, command, tmp_path, monkeypatch):
    """Fail inside the training of the first run: the handler of that training must not stay."""
    import limbeck.training.trainer

    real, calls = limbeck.training.trainer.RunTrainer.compute_loss, []

    def failing(self, *given, **options):
        calls.append(1)
        if len(calls) <= 2:  # both attempts
            raise RuntimeError("no luck")
        return real(self, *given, **options)

    monkeypatch.setattr(limbeck.training.trainer.RunTrainer, "compute_loss", failing)
    with signal_in("limbeck.training.session.load_data", signal.SIGTERM, 3):
        code, said = command("study", home / "study.yaml", "-o", "study")
    assert code == 143 and not (tmp_path / "study" / "results.json").exists(), said


LATER = [
    pytest.param(moment, marks=pytest.mark.slow)
    for moment in ("data", "teacher", "layers", "rung", "export", "measure")
]


@pytest.mark.parametrize("moment", ["student", *LATER])
def test_shrink_stops_too(moment, table_files, teacher_folder, command, tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.shrink.pipeline.schedule_race", lambda *_: RaceSchedule((2, 1), 2, (1.0, 1.0), 1.0))
    monkeypatch.setattr("limbeck.shrink.schedule._MOST_EPOCHS", 1.0)
    monkeypatch.setattr("limbeck.shrink.forms._SECONDS", 0.05)
    monkeypatch.setattr("limbeck.inference.latency._WARM_UP", 0.005)
    monkeypatch.setattr("limbeck.inference.latency._MEASURED", 0.005)
    monkeypatch.setattr("limbeck.shrink.scores._RESAMPLES", 50)
    monkeypatch.setattr("limbeck.shrink.forms.FORMS", {"hf": "model"})
    target = {
        "data": "limbeck.shrink.data.write_table",
        "teacher": "limbeck.shrink.pipeline.reason_to_fine_tune",
        "layers": "limbeck.shrink.pipeline.compare_layers",
        "student": "limbeck.study.jobs.execute",
        "rung": "limbeck.study.jobs.execute",
        "export": "limbeck.deploy.export.replacing_folder",
        "measure": "limbeck.shrink.pipeline.time_forms",
    }[moment]
    data = ["--data", table_files[0], "--dev", table_files[1], "--text", "text", "--label", "label"]
    words = ["shrink", "--model", teacher_folder, *data, "-o", "out"]
    with signal_in(target, signal.SIGTERM, 3 if moment == "rung" else 1):
        code, said = command(*words)
    assert code == 143 and said.endswith("The same command continues out."), said
    assert not (tmp_path / "out" / "summary.json").exists() and not hidden(tmp_path)
    with signals_put_back():
        code, said = command(*words)
    assert code == 0 and (tmp_path / "out" / "summary.json").is_file(), said


@pytest.mark.parametrize("name", ["evaluate", "predict", "export", "analyze", "bench", "cache", "finetune"])
def test_every_command_that_runs_a_model_ends_with_one_message_and_cleans_up(
    name, home, command, table_files, teacher_folder, tmp_path
):
    shutil.copytree(home / "run", tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    task = table_words(table_files)
    words = {
        "evaluate": ["run"],
        "predict": ["run", table_files[1], "-o", "out.csv"],
        "export": ["run", "-o", "out"],
        "analyze": ["run"],
        "bench": ["run", "-o", "out.json"],
        "cache": [*distill_words(table_files, teacher_folder, "--method", "kd"), "-o", "out"],
        "finetune": ["table", "--model", teacher_folder, *task[2:], "-o", "out"],
    }[name]
    # not in the middle of a training, which stops after its step
    moment = "limbeck.training.session.load_data" if name == "finetune" else "torch.nn.functional.layer_norm"
    with signal_in(moment, signal.SIGTERM):
        code, said = command(name, *words)
    assert code == 143 and "Told to stop (SIGTERM)" in said and "he same command" in said, said
    left = {path.name for path in tmp_path.rglob("*")} - {path.name for path in before}
    assert not hidden(tmp_path) and "metrics.json" not in left, left
    assert not left & {"out.csv", "out.json", "summary.json", "README.md", "analysis.json"}


def test_a_signal_that_python_swallowed_still_counts(home, command, tmp_path):
    """Send it in a destructor, out of which no exception comes: what then goes wrong is no news."""

    class Swallows:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def load(*_, **__):
        Swallows()
        raise RuntimeError("in the middle of stopping")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda _: None)
        patched.setattr("limbeck.training.session.load_data", load)
        code, said = command("distill", home / "recipe.yaml", "-o", "run")
    assert code == 143 and "middle of stopping" not in said


def test_handlers_are_given_back(home, command):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    command("distill", home / "recipe.yaml", "-o", "run")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_signal_that_is_ignored_stays_so(home, command):
    """Ignore Ctrl-C as a shell's background job does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signal_in(STEP, signal.SIGINT):
        code, said = command("distill", home / "recipe.yaml", "-o", "run")
    assert code == 0, said


WORKERS = """
import sys
import limbeck.cli.train
from helpers.fake_training import quick
from limbeck.cli.main import main
from limbeck.study.engines import Workers
limbeck.cli.train.choose_engine = lambda workers, ray, threads: Workers(workers, 1, quick)
sys.argv[0] = "limbeck"
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_all", [False, True], ids=["the command alone", "its whole group, as schedulers do"])
def test_a_study_with_workers_leaves_nothing_running(number, to_all, home, tmp_path):
    shutil.copy(home / "study.yaml", tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", WORKERS, "study", "study.yaml", "-o", "study", "--workers", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FAKE_SECONDS": "2"},
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and not (tmp_path / "study" / "work.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(working_in(tmp_path)) >= 3
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in said, said
    assert said.count("Error:") == 1 and said.rstrip().endswith("The same command continues study.")
    assert not (tmp_path / "study" / "results.json").exists() and working_in(tmp_path) == []


def working_in(folder):
    """List the processes whose working directory is this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
        except OSError:  # it ended just now
            continue
    return found
