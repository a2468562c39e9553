"""Ask every command that prints tables for JSON: numbers as they are, and nothing else on stdout."""

from __future__ import annotations

import json

import pytest
import yaml
from helpers.fake_runs import make_run, make_runs
from helpers.in_process import json_of_command
from helpers.saved_runs import read_json
from helpers.tiny_recipes import distill_words, table_task, table_words
from typer.main import get_command

from limbeck import METHODS
from limbeck.cli.main import app
from limbeck.demo import Demo, Row
from limbeck.recipes.files import shipped_recipes
from limbeck.tasks import TASKS

pytestmark = pytest.mark.usefixtures("quick_collection")
WITHOUT_TABLES = {"cache", "export", "predict", "push", "report", "serve"}  # they name files, or an address


@pytest.fixture(scope="module")
def distilled(tmp_path_factory, table_files, teacher_folder):
    """Distil for two steps, into a run that other commands look at; return it with the JSON."""
    folder = tmp_path_factory.mktemp("json") / "run"
    words = distill_words(table_files, teacher_folder, "--method", "kd", "train.max_steps=2", "-o", folder)
    return folder, json_of_command("distill", *words)


@pytest.fixture()
def things(distilled, table_files, teacher_folder, tokenizer_folder, tmp_path, monkeypatch):
    """Return by name what commands work on, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    return {"run": distilled[0], "files": table_files, "teacher": teacher_folder, "words": tokenizer_folder}


def test_json_of_distill(distilled):
    folder, found = distilled
    assert found == {"run": str(folder)} | read_json(folder / "metrics.json")


def test_json_of_finetune(things):
    task = [f"task.{key}={value}" for key, value in table_task(things["files"]).items() if key != "name"]
    words = ["finetune", "table", *task, "--model", things["teacher"], "train.max_steps=1", "-o", "teacher"]
    assert json_of_command(*words)["metrics"]["accuracy"] <= 1


def test_json_of_evaluate(things):
    found = json_of_command("evaluate", things["run"])
    metrics = read_json(things["run"] / "metrics.json")["metrics"]
    assert found["metrics"] == pytest.approx(metrics) and found["examples"] == 40


def test_json_of_study(things):
    task = {key: value for key, value in table_task(things["files"]).items() if key != "name"}
    train = {"max_steps": 1, "batch_size": 16}
    values = {"tasks": ["table"], "task": task, "student": {"from": "teacher", "keep": "first:2"}, "train": train}
    values |= {"teacher": {"model": str(things["teacher"]), "train": train, "confirmed": True, "cache": "off"}}
    values |= {"methods": ["ft"], "seeds": [0, 1], "rivals": False}
    with open("mine.yaml", "w") as file:
        yaml.safe_dump(values, file)
    plan = json_of_command("study", "mine.yaml", "--dry-run")["plan"]
    assert sum(line["runs"] for line in plan if line["label"] == "ft") == 2
    found = json_of_command("study", "mine.yaml", "-o", "study")
    assert found["study"] == "study" and {score["label"] for score in found["scores"]} == {"ft"}


def test_json_of_compare(things):
    for name, scores in (("ft", [0.60, 0.61, 0.62]), ("kd", [0.70, 0.71, 0.72])):
        make_runs(things["run"].parent / "fake", name, scores)
    found = json_of_command("compare", things["run"].parent / "fake", "--baseline", "ft", "--format", "markdown")
    means = {score["label"]: score["mean"] for score in found["scores"]}
    assert means == {"ft": pytest.approx(0.61), "kd": pytest.approx(0.71)}
    (test,) = found["tests"]
    assert test["ours"] == "kd" and test["difference"] == pytest.approx(0.1) and test["p"] < 0.001
    assert found["tables"][0]["rows"][-1][-1] == "71.00 ± 1.00†"


def test_json_of_rivals(things):
    found = json_of_command("rivals", things["run"], "--model", things["teacher"])
    assert found["left_out"] == {"table": {}}
    assert any("TF-IDF" in row[0] for row in found["tables"][0]["rows"])


def test_json_of_analyze(things):
    found = json_of_command("analyze", things["run"], "--no-cost", "-o", "figures")
    assert found["output"] == "figures" and "Calibration" in {table["title"] for table in found["tables"]}
    assert found["files"]


def test_json_of_glue(things):
    run = make_run(things["run"].parent / "rte", "kd", 1, 0.5)
    found = json_of_command("glue", run)
    assert found["tasks"]["rte"]["runs"] == 1 and found["tasks"]["rte"]["metrics"]["accuracy"] == 0.5
    assert found["averages"] == {"glue": None, "fcd": None}


def test_json_of_bench(things):
    sizes = ["--batch-size", 1, "--length", 4, "--seconds", 1, "--no-memory"]
    found = json_of_command("bench", things["teacher"], things["run"], *sizes, "-o", "bench.json")
    assert [model["name"] for model in found["models"]] == ["teacher", "run"]
    with open("bench.json") as file:
        assert json.load(file) == found


def test_json_of_shrink(things, monkeypatch):
    monkeypatch.setattr("limbeck.shrink.pipeline.shrink", lambda request, folder: {"rows": {"train": 96}})
    monkeypatch.setattr("limbeck.shrink.page.summary_page", lambda summary: "# Summary")
    words = ["--data", things["files"][0], "--text", "text", "--label", "label", "-o", "out"]
    found = json_of_command("shrink", "--model", things["teacher"], *words)
    assert found == {"folder": "out", "rows": {"train": 96}}


def test_json_of_demo(things, monkeypatch):
    row = Row("student", "kd", "accuracy", 0.875, "90.0%", 1000, 0.25)
    monkeypatch.setattr("limbeck.demo.run_demo", lambda *given, **options: Demo([row], None))
    assert json_of_command("demo") == {"output": "demo-runs", "rows": [vars(row)], "report": None}


def test_json_of_methods(things):
    assert json_of_command("methods")["methods"].keys() == METHODS.keys()
    found = json_of_command("methods", "kd")
    assert {"name": "temperature", "type": "float", "default": "5.0"} in found["options"] and found["cost"] is None
    assert json_of_command("methods", "fcd", "--student", things["teacher"])["cost"]["flops"] > 1e6


def test_json_of_tasks(things):
    assert json_of_command("tasks")["tasks"].keys() == TASKS.keys()
    assert "separator" in {option["name"] for option in json_of_command("tasks", "table")["options"]}


def test_json_of_recipes(things):
    assert json_of_command("recipes")["recipes"].keys() == shipped_recipes().keys()


def test_json_of_studies(things):
    assert "alignment/small" in json_of_command("studies")["studies"]


def test_json_of_profile(things):
    words = [word for word in table_words(things["files"]) if word not in ("--task", "table")]
    found = json_of_command("profile", "table", *words, "--model", things["words"])
    assert found["splits"]["train"]["rows"] == 96 and sum(found["splits"]["train"]["counts"].values()) == 96


def test_json_of_validate(things):
    found = json_of_command("validate", "kd-rte", "method.temperature=7")
    assert found["valid"] and found["recipes"][0]["method"]["temperature"] == 7 and found["not_looked_at"] == []
    assert len(json_of_command("validate", "ics")["recipes"]) == 21


def test_json_of_doctor(things, monkeypatch):
    monkeypatch.setattr("limbeck.cli.slow_setups.find_slow_setups", lambda: ["The core is slow. Take another."])
    found = json_of_command("doctor")
    assert found["setup"]["torch"] and found["warnings"] == ["The core is slow. Take another."]


def test_every_command_that_prints_tables_is_asked():
    commands, prefix = get_command(app).commands, "test_json_of_"
    asked = {name.removeprefix(prefix) for name in globals() if name.startswith(prefix)}
    assert asked == commands.keys() - WITHOUT_TABLES
    assert asked == {name for name, one in commands.items() if any("--json" in option.opts for option in one.params)}


def test_a_mistake_leaves_stdout_empty(limbeck):
    done = limbeck("evaluate", "nowhere", "--json", check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("Error: ")
