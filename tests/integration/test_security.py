"""Open what comes from elsewhere (models, runs, recipes, data): it runs no code, and writes and tells nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers.fuzzed_inputs import KD, LAUGHS, STUDY
from helpers.saved_runs import read_json
from helpers.tiny_tables import sentences, write_csv
from helpers.user_folder import Desk
from helpers.watched_commands import Outcome

from limbeck._internal.files import file_name

COLUMNS = ["task.text=text", "task.label=label"]
TABLE = ["--task", "table", "task.train=in/train.csv", *COLUMNS]
PREDICT = ["predict", "{model}", "in/dev.csv", "--text", "text", "-o", "out/p.csv"]
DISTILL = ["distill", "in/recipe.yaml", "-o", "out"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("security"), teacher_folder)


@pytest.fixture()
def desk(shared: Desk) -> Desk:
    shared.clear()
    return shared


class Bomb:
    """Leave a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture()
def bomb(desk: Desk) -> Bomb:
    return Bomb(desk.home / "boom")


def test_the_bomb_goes_off_where_pickles_are_loaded(bomb: Bomb) -> None:
    pickle.loads(pickle.dumps(bomb))
    assert bomb.mark.is_dir()


def refused(desk: Desk, bomb: Bomb, *words: Any) -> str:
    """Do it; it must end with one message, which is returned, and not load the pickle."""
    outcome = desk("--quiet", *words)
    assert not bomb.mark.exists()
    assert outcome.escaped is None and outcome.status == 1, outcome
    assert outcome.err.startswith("Error: ") and "Traceback" not in outcome.err
    return outcome.message


def pickled_weights(folder: Path, bomb: Bomb) -> None:
    """Save a model whose weights are in PyTorch's pickle only, as many on the hub are."""
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.weight": bomb}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "words",
    [
        DISTILL,
        ["distill", "in/recipe.yaml", "student={model: in/teacher}", "teacher.model=runs/a", "-o", "out"],
        ["finetune", "table", "task.train=in/train.csv", *COLUMNS, "--model", "in/teacher", "-o", "out"],
        ["cache", "in/recipe.yaml", "-o", "out"],
        ["evaluate", "in/teacher", *TABLE],
        ["predict", "in/teacher", "in/dev.csv", "--text", "text"],
    ],
    ids=lambda words: words[0],
)
def test_pickled_weights_are_not_loaded(desk: Desk, bomb: Bomb, words: list[str]) -> None:
    pickled_weights(desk.work / "in" / "teacher", bomb)
    assert "pickled .bin weights are not read, and no code is run" in refused(desk, bomb, *words)
    assert not (desk.work / "out").exists()


@pytest.mark.parametrize("words", [["evaluate", "runs/a"], ["predict", "runs/a", "in/dev.csv"], ["analyze", "runs/a"]])
def test_pickled_weights_of_a_run_are_not_loaded(desk: Desk, bomb: Bomb, words: list[str]) -> None:
    pickled_weights(desk.work / "runs" / "a" / "student", bomb)
    assert "pickled .bin weights are not read, and no code is run" in refused(desk, bomb, *words)


def test_a_study_with_a_pickled_teacher(desk: Desk, bomb: Bomb) -> None:
    pickled_weights(desk.work / "in" / "teacher", bomb)
    assert "pickled .bin weights" in refused(desk, bomb, "study", "in/study.yaml", "methods=[ft]", "seeds=[0]")


@pytest.mark.parametrize("kind", ["npz", "npy", "pickle"])
@pytest.mark.parametrize("words", [["analyze", "runs/a"], ["report", "runs/a"], ["report", "runs/a", "--no-analyze"]])
def test_pickles_in_an_analysis(desk: Desk, bomb: Bomb, kind: str, words: list[str]) -> None:
    folder = desk.work / "runs" / "a" / "analysis"
    folder.mkdir()
    objects = np.array([bomb], dtype=object)
    with (folder / "arrays.npz").open("wb") as file:
        if kind == "npz":
            np.savez(file, **{"layers.after": objects})  # type: ignore[arg-type]
        elif kind == "npy":
            np.save(file, objects, allow_pickle=True)
        else:
            pickle.dump(bomb, file)
    (folder / "analysis.json").write_text('{"settings": {}}')
    assert "Measure it again: limbeck analyze --force runs/a" in refused(desk, bomb, *words)


def test_pickles_in_a_cache_of_features(desk: Desk, bomb: Bomb) -> None:
    assert desk("cache", "in/recipe.yaml", "-o", "features").status == 0
    shards = list((desk.work / "features").glob("*.safetensors"))
    assert shards
    for shard in shards:
        shard.write_bytes(pickle.dumps(bomb))
    outcome = desk(*DISTILL, "teacher.cache=features")
    assert outcome.status == 0 and "It is computed again" in outcome.message and not bomb.mark.exists()
    for file in (desk.work / "features").glob("*.json"):
        file.write_bytes(pickle.dumps(bomb))
    again = ["distill", "in/recipe.yaml", "-o", "again", "teacher.cache=features"]
    assert "Remove the folder features" in refused(desk, bomb, *again)


@pytest.mark.parametrize("ending", ["pkl", "npy", "pt", "csv", "tsv", "jsonl", "parquet", "arrow"])
def test_pickles_as_data(desk: Desk, bomb: Bomb, ending: str) -> None:
    file = f"in/data.{ending}"
    (desk.work / file).write_bytes(pickle.dumps(bomb))
    assert file in refused(desk, bomb, *DISTILL, f"task.train={file}")
    assert file in refused(desk, bomb, "predict", "in/teacher", file, "--text", "text")


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.json", "predictions.parquet"])
def test_pickles_in_a_run(desk: Desk, bomb: Bomb, name: str) -> None:
    (desk.work / "runs" / "a" / name).write_bytes(pickle.dumps(bomb))
    assert f"runs/a/{name}" in refused(desk, bomb, "compare", "runs/a", "runs/b")
    if name == "recipe.yaml":
        assert f"runs/a/{name}" in refused(desk, bomb, "evaluate", "runs/a")


CODE = "import os\nos.mkdir({mark!r})\n"


@pytest.mark.parametrize("family", ["bert", "unheard-of"])
@pytest.mark.parametrize("words", [PREDICT, ["evaluate", "{model}", *TABLE], [*DISTILL, "teacher.model={model}"]])
def test_code_in_a_model_folder_is_not_run(
    desk: Desk, bomb: Bomb, family: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []  # whether to run the code, which transformers does unless it is told not to
    monkeypatch.setattr("builtins.input", asked.append)
    folder = desk.work / "in" / "teacher"
    (folder / "evil.py").write_text(CODE.format(mark=str(bomb.mark)))
    classes = ("AutoConfig", "AutoModelForSequenceClassification", "AutoModel")
    code = {name: "evil.Evil" for name in classes}
    for name, changes in {
        "config.json": {"model_type": family, "auto_map": code},
        "tokenizer_config.json": {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}},
    }.items():
        file = folder / name
        file.write_text(json.dumps((read_json(file) if file.exists() else {}) | changes))
    outcome = desk("--quiet", *(word.format(model="in/teacher") for word in words))
    assert not bomb.mark.exists() and outcome.escaped is None and "Traceback" not in outcome.err
    assert not asked
    if outcome.status:
        assert "no code is run" in outcome.message
    assert outcome.status or family == "bert"  # which transformers has code for


APPLY = "!!python/object/apply:os.mkdir [{mark}]"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("in/recipe.yaml", ["validate", "in/recipe.yaml"]),
        ("in/recipe.yaml", DISTILL),
        ("in/study.yaml", ["study", "in/study.yaml", "-o", "out"]),
        ("runs/a/recipe.yaml", ["compare", "runs"]),
        ("runs/a/recipe.yaml", ["evaluate", "runs/a"]),
        ("runs/a/recipe.yaml", ["predict", "runs/a", "in/dev.csv"]),
        ("runs/a/recipe.yaml", ["analyze", "runs/a"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
@pytest.mark.parametrize("value", [APPLY, LAUGHS, "&a [*a]", "[" * 100_000])
def test_yaml_makes_no_objects_and_stays_small(desk: Desk, bomb: Bomb, file: str, words: list[str], value: str) -> None:
    with (desk.work / file).open("a") as opened:
        opened.write(f"\nextra: {value.replace('{mark}', str(bomb.mark))}\n")
    started = time.process_time()
    assert file in refused(desk, bomb, *words)
    assert time.process_time() - started < 5
    assert not (desk.work / "out").exists()


@pytest.mark.parametrize("key", ["seed", "task.train", "method.name", "student.config"])
@pytest.mark.parametrize("value", [APPLY, LAUGHS, "&a [*a]", "[" * 100_000])
def test_overrides_make_no_objects(desk: Desk, bomb: Bomb, key: str, value: str) -> None:
    refused(desk, bomb, *DISTILL, f"{key}={value.replace('{mark}', str(bomb.mark))}")


def only_in(desk: Desk, outcome: Outcome, *places: str) -> None:
    """Check that nothing was written but there, nor was that tried."""
    allowed = [desk.work / place for place in places]
    for path in outcome.changed:
        assert any(path.is_relative_to(place) for place in allowed), path
    for path in outcome.touched:
        assert path.is_relative_to(desk.temporary) or path.is_relative_to(desk.work), path


@pytest.mark.parametrize("name", ["..", "../../x", "/x", "a:b", "a\\b", "a\0b", ".hidden", "a/../../b"])
def test_a_name_is_one_step(name: str) -> None:
    made = file_name(name)
    assert Path("there", made).resolve().parent == Path("there").resolve() and not made.startswith(".")
    assert not set(made) & set("/\\:\0")


def test_names_in_data_and_recipes_lead_nowhere(desk: Desk) -> None:
    labels = {"positive": "../../../up", "negative": "/tmp/down"}
    for name, rows in (("train.csv", sentences(24)), ("dev.csv", sentences(12, seed=1))):
        write_csv(desk.work / "in" / name, [(text, labels[label]) for text, label in rows])
    words = ["finetune", "table", "task.train=in/train.csv", *COLUMNS, "--model", "in/teacher", "train.max_steps=1"]
    outcome = desk(*words, "train.run_name=../../x", "-o", "out")
    assert outcome.status == 0, outcome.err
    only_in(desk, outcome, "out")
    outcome = desk("predict", "out", "in/dev.csv", "-o", "p/q.csv")
    assert outcome.status == 0, outcome.err
    only_in(desk, outcome, "p")
    outcome = desk("evaluate", "out", "--split", "../../x", "--submission", "s")
    assert "no split '../../x'" in outcome.message or "no official evaluation" in outcome.message
    only_in(desk, outcome)


@pytest.mark.parametrize("name", ["../../x:method", "..:method", "os.path:../../x"])
def test_a_method_of_ones_own_names_no_folder(desk: Desk, name: str) -> None:
    outcome = desk("distill", "in/recipe.yaml", f"method={{name: '{name}'}}")
    assert outcome.status == 1 and outcome.err.startswith("Error: ")
    only_in(desk, outcome)


def test_names_in_a_study_lead_nowhere(desk: Desk) -> None:
    study = STUDY | {"methods": {"../../up": {"method.name": "ft"}}, "seeds": [0], "baselines": [], "select_seeds": [0]}
    study["teacher"] = {"fine_tuned": str(desk.work / "in" / "teacher"), "cache": "auto"}
    (desk.work / "in" / "...yaml").write_text(yaml.safe_dump(study))
    outcome = desk("study", "in/...yaml")
    assert outcome.status == 0, outcome.err
    only_in(desk, outcome, "studies")
    (folder,) = (desk.work / "studies").iterdir()
    assert (folder / "results.json").is_file()

    file = folder / "results.json"
    results = read_json(file)
    shutil.move(desk.work / "studies", desk.work / "received")
    for place in ("../../runs/a", str(desk.work / "runs" / "a")):
        results["entries"][0]["runs"] = [place]
        received = desk.work / "received" / folder.name
        (received / "results.json").write_text(json.dumps(results))
        for words in (["analyze", received], ["report", received], ["compare", received]):
            outcome = desk(*words)
            assert "which is outside of the study" in outcome.message
            only_in(desk, outcome)


def test_names_in_a_run_lead_nowhere(desk: Desk) -> None:
    file = desk.work / "runs" / "a" / "metrics.json"
    metrics = read_json(file)
    metrics |= {"task": "../../../up", "method": "/tmp/down"}
    file.write_text(json.dumps(metrics))
    outcome = desk("report", "runs/a", "--no-analyze", "-o", "r.html", "--figures", "figures")
    assert outcome.status == 0, outcome.err
    only_in(desk, outcome, "r.html", "figures")


SECRETS = {
    "HF_TOKEN": "hf_SECRETtoken",
    "AWS_SECRET_ACCESS_KEY": "SECRETaws",
    "WANDB_API_KEY": "SECRETwandb",
    "https_proxy": "http://me:SECRETproxy@127.0.0.1:9",
    "HF_ENDPOINT": "http://me:SECRETendpoint@127.0.0.1:9",
    "MY_PASSWORD": "SECRETpassword",
}


@pytest.fixture()
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def files_with(folder: Path, word: str) -> list[str]:
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file() and word.encode() in path.read_bytes()]


def test_runs_hold_no_secrets(desk: Desk, secrets: None) -> None:
    for words in (
        ["distill", "in/recipe.yaml", "train.save_strategy=epoch", "train.save_total_limit=2", "-o", "out/run"],
        ["distill", "in/recipe.yaml", "teacher.model=not/there", "-o", "out/none"],
        ["study", "in/study.yaml", "methods=[ft, kd]", "seeds=[0]", "-o", "out/study"],
        ["study", "in/study.yaml", "teacher={fine_tuned: not/there}", "methods=[ft, kd]", "-o", "out/failed"],
        ["report", "out/run", "--no-analyze", "-o", "out/report.html"],
        ["doctor"],
    ):
        outcome = desk(*words)
        assert outcome.escaped is None and "SECRET" not in outcome.out + outcome.err
    assert list((desk.work / "out" / "run" / "checkpoints").iterdir())
    assert list((desk.work / "out" / "failed" / "failures").iterdir())
    assert not files_with(desk.work / "out", "SECRET")
    # the recipes above name no absolute path, so that no file has a reason to
    for folder in ("run", "study"):
        assert files_with(desk.work / "out" / folder, str(desk.home)) == []


def test_a_token_in_a_recipe_is_refused(desk: Desk) -> None:
    recipe = KD | {"train": KD["train"] | {"hub_token": "hf_SECRETtoken", "push_to_hub": True}}
    (desk.work / "in" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    outcome = desk(*DISTILL)
    assert "a run directory must hold no secret" in outcome.message and "SECRET" not in outcome.err
    only_in(desk, outcome)


@pytest.mark.slow
def test_analyses_and_their_report_hold_no_secrets(desk: Desk, secrets: None) -> None:
    outcome = desk("report", "runs/a", "-o", "out/report.html", "--figures", "out/figures")
    assert outcome.status == 0, outcome.err
    assert (desk.work / "runs" / "a" / "analysis" / "analysis.json").is_file()
    assert not files_with(desk.work / "runs", "SECRET") and not files_with(desk.work / "out", "SECRET")
    # the page shows the recipe as it was written, with its paths
    assert not files_with(desk.work / "out" / "figures", str(desk.home))
