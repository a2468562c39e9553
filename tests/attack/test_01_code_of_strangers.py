"""Import nothing that only a file names: not from a run directory, a recipe, a study or a model folder."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.paths import ROOT
from helpers.saved_runs import read_json
from helpers.strangers import Stranger
from helpers.tiny_recipes import recipe_values, table_task, tiny_recipe

from limbeck import execute, load_recipe
from limbeck.analysis.analyze import Settings, analyze
from limbeck.cli.main import app
from limbeck.errors import RecipeError

Command = Callable[..., tuple[int, str]]
REFUSED = "add --allow-code to this command"
ALLOW = "--allow-code"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, table_files: tuple[Path, Path], teacher_folder: Path) -> Path:
    return execute(tiny_recipe(table_files, teacher_folder), tmp_path_factory.mktemp("runs") / "kd").path


@pytest.fixture(autouse=True)
def no_modules_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what imports change, so that each test finds the stranger's module anew."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("theirs", "trusted", "typed", "inner"):
            del sys.modules[name]


def received(run: Path, tmp_path: Path, name: str = "theirs") -> Stranger:
    """Receive a run by a method of somebody's own. What one test allows, it allows under a name of its own."""
    stranger = Stranger(tmp_path / name, run)
    stranger.rewrite(method={"name": stranger.method, "beta": 2.0})
    return stranger


@pytest.fixture()
def theirs(run: Path, tmp_path: Path) -> Stranger:
    return received(run, tmp_path)


@pytest.fixture()
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing of the report's page, which takes most of its time."""
    monkeypatch.setattr("limbeck.report.page.write_report", lambda *_: None)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "words",
    [
        ["validate", "theirs/recipe.yaml"],
        pytest.param(["analyze", "theirs", "--examples", "8", "-o", "out"], marks=pytest.mark.slow),  # draws
        ["report", "theirs", "-o", "out.html"],
        ["compare", "theirs"],
        ["evaluate", "theirs"],
        ["export", "theirs", "-o", "out", "--examples", "4"],
        ["predict", "theirs", "{dev}", "-o", "out.csv"],
        ["bench", "theirs", "--seconds", "1", "--batch-size", "1", "--length", "4", "--no-memory"],
    ],
    ids=lambda words: f"{words[0]}{len(words)}",
)
def test_reading_commands_import_nothing(
    command: Command, theirs: Stranger, table_files: tuple[Path, Path], words: list[str]
) -> None:
    code, said = command(*(word.format(dev=table_files[1]) for word in words))
    assert not theirs.mark.exists() and "theirs.student.evil" not in sys.modules
    assert str(theirs.folder.parent) not in sys.path
    assert code == 0, said


@pytest.mark.parametrize(
    "words",
    [
        ["distill", "theirs/recipe.yaml", "-o", "out"],
        ["distill", "theirs/recipe.yaml", "-o", "theirs", "--resume"],
        ["distill", "theirs/recipe.yaml", "method.beta=3", "train.epochs=1", "-o", "out"],
        ["cache", "theirs/recipe.yaml", "-o", "out"],
    ],
    ids=lambda words: f"{words[0]}{len(words)}",
)
def test_training_commands_refuse_code_that_only_a_file_names(
    command: Command, theirs: Stranger, words: list[str]
) -> None:
    code, said = command(*words)
    assert not theirs.mark.exists() and not Path("out").exists()
    assert code == 1 and REFUSED in said and f"'{theirs.method}' is code" in said


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "a stage": lambda name: {"stages": [{"method": {"name": "kd"}}, {"method": {"name": name}}]},
    "a stage's inner method": lambda name: {"stages": [{"method": {"name": "metadistil", "inner": name}}]},
    "an inner method": lambda name: {"method": {"name": "metadistil", "inner": name}},
    "a grid": lambda name: {"method": {"name": "kd"}, "grid": {"method.name": ["kd", name]}},
    "a grid of blocks": lambda name: {"method": {"name": "kd"}, "grid": {"method": [{"name": name}]}},
    "a grid of inner methods": lambda name: {"method": {"name": "metadistil"}, "grid": {"method.inner": [name]}},
}


@pytest.mark.parametrize("place", PLACES)
def test_no_place_in_a_recipe_brings_code(command: Command, theirs: Stranger, place: str) -> None:
    theirs.rewrite(**PLACES[place](theirs.method))
    code, said = command("distill", theirs.recipe, "train.max_steps=1", "teacher.cache=off", "-o", "out")
    assert not theirs.mark.exists() and not Path("out").exists()
    assert code == 1 and REFUSED in said, said


def test_no_row_of_a_family_brings_code(command: Command, theirs: Stranger) -> None:
    base = yaml.safe_load(theirs.recipe.read_text()) | {"method": {"name": "kd"}}
    rows = {"row": {"set": {"method.name": theirs.method}}}
    theirs.write("family.yaml", {"base": base, "tables": [{"where": "t", "metrics": ["accuracy"], "rows": rows}]})
    code, said = command("distill", "theirs/family.yaml/row", "-o", "out")
    assert not theirs.mark.exists() and code == 1 and REFUSED in said


STUDIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "a label": lambda name: {"methods": [name]},
    "a method": lambda name: {"methods": {"mine": {"method.name": name}}},
    "a block": lambda name: {"methods": {"mine": {"method": {"name": name}}}},
    "stages": lambda name: {"methods": {"mine": {"stages": [{"method": {"name": name}}]}}},
    "a recipe": lambda name: {"methods": {"mine": {"recipe": "theirs/recipe.yaml"}}},
    "a method's grid": lambda name: {"methods": {"kd": {"grid": {"method.name": ["kd", name]}}}},
    "the grid": lambda name: {"methods": ["kd"], "grid": {"method.name": [name]}},
    "an inner method": lambda name: {"methods": {"metadistil": {"method.inner": name}}},
    "a task": lambda name: {"methods": ["kd"], "tasks": {"table": {"method.name": name}}},
    "a variant": lambda name: {"methods": {"kd": {}}, "variants": {"v": {"methods.kd.method.name": name}}},
}


def study_values(files: tuple[Path, Path], teacher: Path) -> dict[str, Any]:
    return {
        "tasks": ["table"],
        "task": {key: value for key, value in table_task(files).items() if key != "name"},
        "teacher": {"fine_tuned": str(teacher), "cache": "off"},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 1, "batch_size": 16},
        "seeds": [0],
    }


@pytest.mark.parametrize("place", STUDIES)
def test_no_place_in_a_study_brings_code(
    command: Command, theirs: Stranger, table_files: tuple[Path, Path], teacher_folder: Path, place: str
) -> None:
    values = study_values(table_files, teacher_folder) | STUDIES[place](theirs.method)
    theirs.write("study.yaml", values)
    source = "theirs/study.yaml/v" if "variants" in values else "theirs/study.yaml"
    for words in (["--dry-run"], ["-o", "out"]):
        code, said = command("study", source, *words)
        assert not theirs.mark.exists() and not Path("out").exists()
        assert code == 1 and REFUSED in said, said


def test_the_page_of_a_report_is_drawn_without_the_code(command: Command, theirs: Stranger) -> None:
    code, said = command("report", "theirs", "--no-analyze", "-o", "out.html")
    assert code == 0 and Path("out.html").is_file() and not theirs.mark.exists(), said


@pytest.mark.usefixtures("undrawn")
def test_a_run_in_a_received_study_is_read_without_its_code(
    command: Command, theirs: Stranger, tmp_path: Path, table_files: tuple[Path, Path], teacher_folder: Path
) -> None:
    study = tmp_path / "study"
    (study / "runs").mkdir(parents=True)
    theirs.folder.rename(study / "runs" / "theirs")
    entry = {"task": "table", "label": "mine", "chosen": {}, "searched": [], "runs": ["runs/theirs"]}
    entry |= {"missing": 0, "why": "", "reported": []}
    about = {"study": "study", "baselines": [], "test": "welch", "sided": "two", "level": 0.05, "selection": ""}
    (study / "results.json").write_text(json.dumps(about | {"entries": [entry], "teachers": {}}))
    name = "study.runs.theirs.student.evil:evil"
    values = study_values(table_files, teacher_folder) | {"methods": {"mine": {"method.name": name}}}
    (study / "study.yaml").write_text(yaml.safe_dump(values))
    recipe = study / "runs" / "theirs" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(theirs.method, name))
    for words in (["report", "study", "-o", "r.html"], ["compare", "study"]):
        code, said = command(*words)
        assert not theirs.mark.exists() and code == 0, said


def test_validate_says_what_it_did_not_check(command: Command, run: Path, tmp_path: Path) -> None:
    trusted = received(run, tmp_path, "trusted")
    trusted.rewrite(method={"name": trusted.method, "gamma": 1})
    code, said = command("validate", "trusted/recipe.yaml")
    assert code == 0 and f"{trusted.method} is code" in said and "options were not checked" in said
    code, said = command("validate", "trusted/recipe.yaml", "train.epohcs=1")  # everything else is checked
    assert code == 1 and "Did you mean 'epochs'" in said and not trusted.mark.exists()
    code, said = command("validate", "trusted/recipe.yaml", ALLOW)
    assert trusted.mark.exists() and code == 1 and "Unknown key 'gamma'" in said


def test_an_analysis_leaves_out_only_what_needs_the_code(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("limbeck.analysis.latency.SECONDS", 0.0)
    trusted = received(run, tmp_path, "trusted_run")
    settings = Settings(examples=8)
    analyze([trusted.folder], settings)
    assert caplog.text.count("was not imported") == 1 and "--allow-code" in caplog.text
    file = trusted.folder / "analysis" / "analysis.json"
    without = read_json(file)
    assert {"cka_diagonal", "relation_difference", "intra_class_similarity", "sentences"} <= without.keys()
    assert {"milliseconds", "speedup", "inference", "disk_bytes"} <= without["cost"].keys()
    assert not {"step_milliseconds", "trained_parameters", "training"} & without["cost"].keys()
    written = file.stat().st_mtime_ns
    analyze([trusted.folder], settings)
    assert file.stat().st_mtime_ns == written  # measured before, as far as it can be
    assert not trusted.mark.exists()

    caplog.clear()
    analyze([trusted.folder], settings, allow_code=True)
    assert trusted.mark.exists() and "was not imported" not in caplog.text
    whole = read_json(file)
    assert {"step_milliseconds", "trained_parameters", "training"} <= whole["cost"].keys()
    assert whole["cka_diagonal"] == without["cka_diagonal"]


@pytest.mark.parametrize("words", [["trusted_{n}/recipe.yaml", ALLOW], ["trusted_{n}/recipe.yaml", "method.name={m}"]])
def test_the_user_may_say_so(command: Command, run: Path, tmp_path: Path, words: list[str]) -> None:
    number = len(words[1])
    trusted = received(run, tmp_path, f"trusted_{number}")
    code, said = command("distill", *(word.format(n=number, m=trusted.method) for word in words), "-o", "out")
    assert code == 0 and trusted.mark.exists() and "L = 2·soft" in said, said
    assert (tmp_path / "out" / "metrics.json").is_file()


@pytest.mark.parametrize(
    "typed",
    [
        "method.name={m}",
        "method={{name: {m}, beta: 1}}",
        "stages=[{{method: {{name: {m}}}}}]",
        "method={{name: metadistil, inner: {m}}}",
    ],
)
def test_what_is_typed_may_be_imported(run: Path, tmp_path: Path, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = received(run, tmp_path, f"typed_{sum(map(ord, typed))}")
    values = {key: value for key, value in yaml.safe_load(own.recipe.read_text()).items() if key != "method"}
    load_recipe(values=values, overrides=[typed.format(m=own.method)])
    assert own.mark.exists()


def test_one_name_that_is_typed_allows_no_other(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs, own = received(run, tmp_path), received(run, tmp_path, "typed_other")
    load_recipe(theirs.recipe, [f"method.name={own.method}"])
    theirs.mark.unlink()
    with pytest.raises(RecipeError, match=REFUSED):
        load_recipe(theirs.recipe, ["student.keep=first:1", f"train.run_name={theirs.method}"])
    assert not theirs.mark.exists()


def test_python_asks_for_a_keyword(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trusted = received(run, tmp_path, "trusted_here")
    values = yaml.safe_load(trusted.recipe.read_text())
    with pytest.raises(RecipeError, match="allow_code=True in Python"):
        load_recipe(values=values)
    assert load_recipe(values=values, allow_code=True).method.options == {"beta": 2.0} and trusted.mark.exists()


def test_the_name_typed_to_methods_is_shown(command: Command, run: Path, tmp_path: Path) -> None:
    typed = received(run, tmp_path, "typed_shown")
    code, said = command("methods", typed.method)
    assert code == 0 and "beta" in said and typed.mark.exists()


def test_a_config_fetches_no_attention_code(
    command: Command, theirs: Stranger, table_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *a, **k: asked.append(a))
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *a, **k: asked.append(a))
    config = theirs.folder / "student" / "config.json"
    config.write_text(json.dumps(read_json(config) | {"attn_implementation": "stranger/kernel"}))
    for words in (["evaluate", "theirs"], ["predict", "theirs", table_files[1]]):
        code, said = command(*words)
        assert code == 1 and "asks for attention code from the hub (stranger/kernel)" in said, said
    assert not asked


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_import_what_was_allowed(
    limbeck: Any, run: Path, tmp_path: Path, table_files: tuple[Path, Path], teacher_folder: Path
) -> None:
    trusted = received(run, tmp_path, "trusted_study")
    values = study_values(table_files, teacher_folder) | {"methods": ["ft", trusted.method]}
    trusted.write("study.yaml", values)
    done = limbeck("study", "trusted_study/study.yaml", "--workers", 2, "-o", "out", check=False)
    assert REFUSED in " ".join(done.stderr.split()) and not trusted.mark.exists()
    limbeck("study", "trusted_study/study.yaml", "--workers", 2, "-o", "out", ALLOW)
    assert trusted.mark.exists() and len(list((tmp_path / "out" / "runs").iterdir())) == 2


@pytest.mark.slow
def test_the_process_that_measures_memory_does_not_search_the_folder(command: Command, theirs: Stranger) -> None:
    code = f"from pathlib import Path\nPath({str(theirs.mark)!r}).touch()\nraise ImportError\n"
    for name in ("torch", "transformers", "yaml"):
        Path(f"{name}.py").write_text(code)
    status, said = command("bench", "theirs", "--seconds", "1", "--batch-size", "1", "--length", "4")
    assert not theirs.mark.exists() and status == 0, said


def test_the_page_about_security_has_every_command_once() -> None:
    table = (ROOT / "docs" / "security.md").read_text().partition("| command |")[2]
    first = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    named = [word.strip(" `") for cell in first for word in cell.split(",")]
    known = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert sorted(named) == sorted(known)
    flags = {line.split("|")[1].strip(" `") for line in table.splitlines() if "with `--allow-code`" in line}
    takes = {name for name in known if "allow_code" in _parameters(name)}
    assert flags == takes


def _parameters(name: str) -> list[str]:
    (found,) = (command.callback for command in app.registered_commands if command.callback.__name__ == name)
    return list(inspect.signature(found).parameters)


def test_refused_values_are_checked_at_once(table_files: tuple[Path, Path], teacher_folder: Path) -> None:
    """An inner method is looked up when the recipe is read, not after the models were loaded."""
    values = recipe_values(table_files, teacher_folder, {"name": "metadistil", "inner": "kdd"})
    with pytest.raises(RecipeError, match=r"method\.inner: Unknown method 'kdd'\. Did you mean 'kd'"):
        load_recipe(values=values)
