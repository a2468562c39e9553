"""Line 15: empty files, full disks and rights are one message, or the work is done again; never a traceback."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import safetensors
from helpers.fake_runs import classes, make_run, make_study
from helpers.tiny_recipes import distill_words, recipe_values, table_task
from helpers.tiny_tables import sentences, write_csv

from limbeck import execute, load_recipe
from limbeck.deploy.export import export
from limbeck.distillation.cache_files import CacheFolder
from limbeck.errors import CacheError, RunError
from limbeck.shrink.pipeline import _finished
from limbeck.shrink.plan import Request, Workspace
from limbeck.study.jobs import CacheJob

pytestmark = pytest.mark.usefixtures("quick_collection")
EMPTY = pytest.mark.parametrize("content", [b"", b"\0" * 40, b'{"cut'], ids=["empty", "zeros", "cut off"])


@pytest.fixture()
def run(tmp_path):
    return make_run(tmp_path / "kd", "kd", 1, 0.5, answers=classes([0, 1, 1], [0, 1, 0]))


@EMPTY
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("metrics.json", ("compare", "kd")),
        ("recipe.yaml", ("compare", "kd")),
        ("metrics.json", ("report", "kd", "--no-analyze")),
        ("recipe.yaml", ("report", "kd", "--no-analyze")),
        ("metrics.json", ("glue", "kd")),
    ],
)
def test_a_run_that_is_read(name, content, words, run, command):
    (run / name).write_bytes(content)
    code, said = command(*words)
    assert code == 1 and f"kd/{name}" in said and "Copy it again or repeat the run" in said


@EMPTY
@pytest.mark.parametrize("words", [("export", "kd"), ("predict", "kd", "texts.csv"), ("evaluate", "kd")], ids=" ".join)
def test_a_recipe_of_a_model_in_use(content, words, run, command, tmp_path, teacher_folder):
    write_csv(tmp_path / "texts.csv", sentences(4))
    shutil.copytree(teacher_folder, run / "student")
    (run / "recipe.yaml").write_bytes(content)
    code, said = command(*words)
    assert code == 1 and "kd/recipe.yaml does not hold the recipe of a run" in said and "Copy it again" in said


@EMPTY
def test_a_recipe_of_a_run_to_resume(content, run, command, table_files, teacher_folder):
    (run / "recipe.yaml").write_bytes(content)
    words = distill_words(table_files, teacher_folder, "--method", "kd")
    code, said = command("distill", *words, "-o", "kd", "--resume")
    assert code == 1 and "kd/recipe.yaml does not hold" in said and "remove the folder kd" in said


@EMPTY
def test_a_recipe_that_is_to_be_run(content, command, tmp_path):
    (tmp_path / "mine.yaml").write_bytes(content)
    for words in (("distill", "mine.yaml", "-o", "out"), ("validate", "mine.yaml"), ("study", "mine.yaml")):
        code, said = command(*words)
        assert code == 1 and "mine.yaml" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["history.jsonl", "environment.json"])
def test_what_only_a_report_reads(name, run, command):
    (run / name).write_bytes(b"")
    code, said = command("report", "kd", "--no-analyze")
    assert (code == 0) if name == "history.jsonl" else (code == 1 and f"kd/{name}" in said and "it is empty" in said)


def test_an_empty_analysis(run, command):
    (run / "analysis").mkdir()
    (run / "analysis" / "analysis.json").write_bytes(b"")
    code, said = command("report", "kd", "--no-analyze")
    assert code == 1 and "kd/analysis is damaged" in said and "limbeck analyze --force kd" in said


@EMPTY
def test_the_results_of_a_study(content, command, tmp_path):
    make_study(tmp_path / "study", [{"label": "kd", "scores": [0.5, 0.6]}])
    (tmp_path / "study" / "study.yaml").write_text("tasks: [glue/rte]\n")
    (tmp_path / "study" / "results.json").write_bytes(content)
    for words in (("compare", "study"), ("report", "study", "--no-analyze")):
        code, said = command(*words)
        assert code == 1 and ("has no results yet" in said or "study/results.json does not hold" in said)


@EMPTY
def test_the_marker_of_a_studys_cache(content, tmp_path):
    values = {"task": {"name": "glue/rte"}, "method": {"name": "kd"}, "teacher": {"cache_dtype": "float32"}}
    job = CacheJob("cache", "cache", str(tmp_path), {"kd": (values, 1)}, str(tmp_path / "caches" / "rte"))
    job.decide(["kd"])
    assert job.finished() and job.serves("kd", values)
    job.marker.write_bytes(content)
    assert not job.finished() and not job.serves("kd", values)  # decided again
    job.decide(["kd"])
    assert job.finished() and job.serves("kd", values)


@EMPTY
def test_the_manifest_of_a_cache(content, tmp_path):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CacheError, match=r"manifest\.json cannot be read .* Remove the folder"):
        CacheFolder(tmp_path, {"teacher": "1"}).check()


@EMPTY
def test_the_parity_of_an_export(content, older, command, tmp_path, export_teacher):
    write_csv(tmp_path / "texts.csv", sentences(4))
    (older / "parity.json").write_bytes(content)
    code, said = command("predict", "older", "texts.csv")
    assert code == 1 and "older/parity.json does not say how the model reads texts" in said and "--force" in said
    export_teacher(older, force=True)  # as the message says
    assert command("predict", "older", "texts.csv")[0] == 0


@EMPTY
def test_the_plan_and_the_summary_of_shrink(content, tmp_path, table_files):
    request = Request("model", str(table_files[0]), ("text",), "label", "0.5x")
    Workspace(tmp_path, request).decide("teacher", {"about": "it"})
    assert Workspace(tmp_path, request).plan["teacher"] == {"about": "it"}
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(RunError, match=r"plan\.json does not hold .* Remove the folder .* choose another --output"):
        Workspace(tmp_path, request)
    (tmp_path / "summary.json").write_bytes(content)
    assert _finished(tmp_path) is None  # made again


def test_a_run_of_a_study_with_an_empty_recipe_is_done_again(tmp_path, monkeypatch):
    from limbeck.study.jobs import TrainJob

    folder = make_run(tmp_path / "runs" / "kd-s1", "kd", 1, 0.5)
    seen = []
    monkeypatch.setattr("limbeck.study.jobs.load_recipe", lambda values: None)
    monkeypatch.setattr("limbeck.study.jobs.execute", lambda recipe, folder, **_: seen.append(folder.exists()))
    values = {"teacher": {"model": "runs/teacher"}}
    job = TrainJob("kd-s1", "kd", str(tmp_path), values, str(folder), "kept")
    assert job.finished()
    (folder / "recipe.yaml").write_bytes(b"")
    assert not job.finished()
    job.run()
    assert seen == [False]


def modes(folder: Path) -> set[tuple[str, int]]:
    found = [("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")]
    return set(found)


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_files_can_be_read_by_whom_the_umask_says(
    umask, file, folder, tmp_path, table_files, teacher_folder, export_teacher
):
    before = os.umask(umask)
    try:
        train = {"max_steps": 2, "batch_size": 8, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 9}
        values = recipe_values(table_files, teacher_folder, train=train)
        values["teacher"]["cache"] = str(tmp_path / "home" / "cache")
        execute(load_recipe(values=values), tmp_path / "home" / "run", show_data=False)
        export_teacher(tmp_path / "home" / "exported")
    finally:
        os.umask(before)
    locks = [path for path in tmp_path.rglob(".lock")]
    for lock in locks:
        lock.unlink()  # which filelock makes
    assert list((tmp_path / "home").rglob("*.safetensors"))
    assert modes(tmp_path) == {("file", file), ("folder", folder)}


FULL = {
    "the tokenizer": ("PreTrainedTokenizerFast", Exception("No space left on device (os error 28)")),
    "safetensors": (
        "BertForSequenceClassification",
        safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ),
    "the system": ("BertForSequenceClassification", OSError(errno.ENOSPC, "No space left on device")),
    "a quota": ("BertForSequenceClassification", OSError(errno.EDQUOT, "Disk quota exceeded")),
    "onnx": ("write_onnx", RuntimeError("Failed to write /x/model.onnx: No space left on device")),
}


def test_a_file_that_onnxruntime_cut_off_is_a_full_disk(tmp_path, monkeypatch):
    """Know a full disk by its room, where the library that met it only says that a file is wrong."""
    from limbeck.deploy import onnx

    def cut_off(*_):
        raise ValueError("Error parsing message with type 'onnx.ModelProto'")

    monkeypatch.setattr(onnx, "_write_float32", lambda *_: None)
    monkeypatch.setattr(onnx, "_write_int8", cut_off)
    with pytest.raises(ValueError):
        onnx.write_onnx(None, [], tmp_path / "model.onnx", "onnx-int8")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))
    with pytest.raises(OSError, match="No space left on device"):
        onnx.write_onnx(None, [], tmp_path / "model.onnx", "onnx-int8")


@pytest.mark.parametrize("who", FULL)
def test_a_full_disk_while_exporting(who, older, command, monkeypatch, tmp_path, table_files, teacher_folder):
    where, error = FULL[who]

    def full(*given, **_):
        raise error

    if where == "write_onnx":
        monkeypatch.setattr("limbeck.deploy.export.write_onnx", full)
    else:
        import transformers

        monkeypatch.setattr(getattr(transformers, where), "save_pretrained", full)
    form = "onnx" if where == "write_onnx" else "hf"
    task = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key != "name"]
    code, said = command("export", teacher_folder, "--task", "table", *task, "--to", form, "-o", "older", "--force")
    assert code == 1 and "No space left on device" in said and "Make room" in said
    assert (older / "older.txt").is_file() and [path.name for path in tmp_path.iterdir()] == ["older"]


@pytest.fixture()
def small_disk(tmp_path):
    """Mount a file system in memory; return the function that does, by its size in KB."""
    mounted = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk-{size}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", folder], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def fill_by_export(to, sizes, small_disk, teacher_folder, table_files):
    """Export onto disks of several sizes, beside an older export; return how many were large enough."""
    task, done = table_task(table_files), 0
    for size in sizes:
        disk = small_disk(size)
        (disk / "mine").mkdir()
        (disk / "mine" / "parity.json").write_text("{}")
        try:
            export(teacher_folder, to, disk / "mine", task=task, max_drop=1.0, force=True)
            done += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(disk) in str(error.filename)
            assert [path.name for path in (disk / "mine").iterdir()] == ["parity.json"]
        assert [path.name for path in disk.iterdir()] == ["mine"]
    return done


def test_a_disk_that_is_really_full(small_disk, teacher_folder, table_files, monkeypatch):
    monkeypatch.setattr("limbeck.deploy.export._SECONDS", 0.01)
    assert fill_by_export("hf", (8, 16, 64, 150, 2000), small_disk, teacher_folder, table_files) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("to", "sizes"), [("onnx", (24, 150, 2000)), ("onnx-int8", (150, 400, 500, 600, 4000))])
def test_a_disk_that_is_really_full_of_onnx(to, sizes, small_disk, teacher_folder, table_files, monkeypatch):
    monkeypatch.setattr("limbeck.deploy.export._SECONDS", 0.01)
    assert fill_by_export(to, sizes, small_disk, teacher_folder, table_files) >= 1
