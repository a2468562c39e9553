"""Go from a tiny model and a table to the front of students: figures, resumption, and input that cannot work."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.saved_runs import assert_same_weights, read_json
from helpers.tiny_models import VOCAB, tiny_model
from helpers.tiny_tables import WORDS, sentences, write_csv
from sklearn.metrics import f1_score
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import limbeck.shrink.pipeline
import limbeck.study.jobs
from limbeck.analysis.disagreements import disagreements
from limbeck.deploy.export import export
from limbeck.errors import MissingExtra
from limbeck.inference.asked import load_asked
from limbeck.inference.predict import predict_file
from limbeck.models.loading import load_for_training
from limbeck.models.vocabulary import make_wordpiece
from limbeck.rivals.frozen import frozen_rivals
from limbeck.rivals.tfidf import tfidf_rival
from limbeck.shrink.layout import find_proposed
from limbeck.shrink.page import summary_page
from limbeck.shrink.pipeline import shrink
from limbeck.shrink.plan import Request
from limbeck.shrink.schedule import StepCost
from limbeck.shrink.teacher import TeacherFolders, reason_to_fine_tune, train_teacher
from limbeck.shrink.trainings import Trainings, fast_passes
from limbeck.tasks import load_task

needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
UNUSED = ("gull", "lamb", "stone")
DEPTHS = (2, 1)  # of a teacher of four layers
# Of 0.1 minutes the race has 3.6 seconds: at this cost two candidates of each depth have three epochs; four of 0.14.
COST = StepCost(epoch=0.33, start=0.02)


@pytest.fixture(scope="module", autouse=True)
def hurry():
    """Do less of everything that takes time, and let the schedule follow from fixed costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("limbeck.shrink.schedule._MOST_EPOCHS", 6.0)
        patch.setattr("limbeck.shrink.pipeline._TEACHER_SHARE", 0.5)
        patch.setattr("limbeck.shrink.forms._SECONDS", 0.1)
        for name, count in (("BYTES", 6), ("NIBBLES", 10), ("SEEN", 20)):
            patch.setattr(f"limbeck.deploy.compact.{name}", count)
        patch.setattr("limbeck.inference.latency._WARM_UP", 0.005)
        patch.setattr("limbeck.inference.latency._MEASURED", 0.005)
        patch.setattr("limbeck.shrink.scores._RESAMPLES", 300)
        patch.setattr("limbeck.shrink.pipeline.measure_cost", lambda recipe: COST)
        patch.setattr("limbeck.shrink.pipeline._Pipeline._left", lambda self: 60 * self.request.minutes)
        yield


@pytest.fixture()
def plain(monkeypatch):
    """Export no ONNX, which takes longer than all the rest."""
    monkeypatch.setattr("limbeck.shrink.forms.export", only_hf)


def only_hf(model, to, output, **options):
    if to != "hf":
        raise MissingExtra("This needs onnxruntime: pip install 'limbeck[onnx]'.")
    return export(model, to, output, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return write_csv(folder / "train.csv", sentences(200)), write_csv(folder / "dev.csv", sentences(61, seed=1))


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    """Save a pre-trained encoder without a head, which knows words that no text has."""
    folder = tmp_path_factory.mktemp("models") / "encoder"
    make_wordpiece([" ".join([*WORDS, *UNUSED])], folder, vocab_size=VOCAB)
    tiny_model("bert", depth=4, seed=5, initializer_range=0.2).base_model.save_pretrained(folder)
    return folder


def request(base, files, **changes):
    train, dev = map(str, files)
    values = {"model": str(base), "data": train, "dev": dev, "text": ("text",), "label": "label", "minutes": 0.1}
    return Request(**(values | changes))


@pytest.fixture(scope="module")
def shrunk(base_folder, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shrunk") / "out"
    return folder, shrink(request(base_folder, files), folder)


def rows_of(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def reported_rows(rows):
    """Return every second text, sorted by label and then by a hash of the text; here all texts differ."""
    assert len({row["text"] for row in rows}) == len(rows)
    hashes = [hashlib.blake2b(b"0:" + row["text"].encode(), digest_size=8).digest() for row in rows]
    order = sorted(range(len(rows)), key=lambda number: (rows[number]["label"], hashes[number]))
    return sorted(order[1::2])


def answers(model, file, output):
    predict_file(model, file, output, text=["text"])
    return [row["prediction"] for row in rows_of(output)]


def labels_of(folder, part):
    return pq.read_table(folder / "data" / f"{part}.parquet").to_pydict()["label"]


def models_of(summary):
    return {model["name"]: model for model in summary["models"]}


def model_places():
    """Return where each model is, by its name in the summary."""
    places = {}
    for folder, name in (("teacher", "teacher"), ("2", "2 layers"), ("1", "1 layer")):
        places |= {name: f"students/{folder}/model", f"{name}, int8": f"students/{folder}/onnx-int8"}
    return places


def taught_by(shrunk):
    return Path(read_json(shrunk[0] / "plan.json")["teacher"]["model"])


def test_rows_that_choose_and_rows_that_are_reported_share_nothing(shrunk, files):
    folder, summary = shrunk
    train, choosing, reported = (
        pq.read_table(folder / "data" / f"{name}.parquet").to_pylist() for name in ("train", "choosing", "reported")
    )
    assert train == rows_of(files[0])
    dev = rows_of(files[1])
    rows = reported_rows(dev)
    assert reported == [dev[row] for row in rows]
    assert choosing == [row for number, row in enumerate(dev) if number not in rows]
    assert summary["rows"] == {"train": 200, "choosing": 31, "reported": 30}


@needs_onnx
def test_every_form_of_every_depth_is_exported_scored_and_counted(shrunk, base_folder, tmp_path):
    folder, summary = shrunk
    assert summary == read_json(folder / "summary.json")
    models, places = models_of(summary), model_places()
    rivals = [name for name, model in models.items() if model["kind"] == "rival"]
    assert models.keys() - rivals == places.keys() and not summary["not_exported"] and not summary["failed"]
    labels = {part: labels_of(folder, part) for part in ("choosing", "reported")}
    found = {  # part by part, because what int8 answers follows from the batch
        (name, part): answers(folder / place, folder / "data" / f"{part}.parquet", tmp_path / f"{name}-{part}.csv")
        for name, place in places.items()
        for part in labels
    }
    for name, place in places.items():
        model = models[name]
        right = {part: np.mean(np.array(found[name, part]) == labels[part]) for part in labels}
        assert model["score"]["value"] == pytest.approx(right["reported"]), name
        assert model["chosen_by"] == pytest.approx(right["choosing"]), name
        assert model["score"]["low"] <= model["score"]["value"] <= model["score"]["high"]
        assert model["latency_ratio"] == pytest.approx(model["p50_ms"] / models["teacher"]["p50_ms"])
        same = np.mean(np.array(found[name, "reported"]) == found["teacher", "reported"])
        assert name == "teacher" or model["agreement"] == pytest.approx(same)
        if model["kind"] == "student":
            gap = model["score"]["value"] - models["teacher"]["score"]["value"]
            assert model["against_teacher"]["value"] == pytest.approx(gap)
            assert set(model["against_rivals"]) == set(rivals)
        file = folder / place / ("onnx/model_quantized.onnx" if "int8" in name else "model.safetensors")
        assert model["disk_bytes"] == file.stat().st_size
    for depth, name in ((2, "2 layers"), (1, "1 layer")):
        student = AutoModelForSequenceClassification.from_pretrained(folder / places[name])
        assert student.config.num_hidden_layers == depth == models[name]["depth"] == models[f"{name}, int8"]["depth"]
        assert models[name]["parameters"] == sum(weight.numel() for weight in student.parameters())
        assert student.config.vocab_size == read_json(base_folder / "config.json")["vocab_size"]
        ours, whole = (AutoTokenizer.from_pretrained(one) for one in (folder / places[name], base_folder))
        assert ours.get_vocab() == whole.get_vocab() and set(UNUSED) <= set(ours.get_vocab())
        assert summary["vocabulary"]["pieces"] < len(whole)
    most = Counter(label for _, label in sentences(200)).most_common(1)[0][0]
    assert summary["majority"] == pytest.approx(np.mean(np.array(labels["reported"]) == most))


def test_what_is_proposed_can_be_served(shrunk):
    """Find the student, its teacher and the examples on which they differ, as `limbeck serve` does."""
    folder, summary = shrunk
    found = find_proposed(folder)
    assert found.student == folder / summary["chosen"]["folder"]
    texts = ["a good cat", "the sad dog"]
    for place in (found.student, found.teacher):
        assert set(load_asked(place).predict(texts).labels) <= {"negative", "positive"}
    examples = disagreements(found.run)
    assert len(examples) == summary["rows"]["choosing"] and examples[0]["texts"][0]


def test_the_race_is_that_of_the_run_directories(shrunk, base_folder):
    """Follow the decisions by what the runs logged, and see that the winner's weights are those that were exported."""
    folder, summary = shrunk
    plan = read_json(folder / "plan.json")
    race = plan["race"]
    assert tuple(race["depths"]) == DEPTHS and race["candidates"] == 2
    assert len(race["epochs"]) == len(DEPTHS) and race["epochs"] == sorted(race["epochs"])
    assert summary["race"] == {key: race[key] for key in ("depths", "candidates", "epochs")}
    for depth in DEPTHS:
        first, last = race["decisions"][str(depth)]
        assert first["until"] == pytest.approx(1 / 3) and last["until"] == 1 and len(first["scores"]) == 2
        for key, score in first["scores"].items():
            log = [json.loads(line) for line in (folder / "race/runs" / key / "history.jsonl").read_text().splitlines()]
            assert next(entry["eval_accuracy"] for entry in log if "eval_accuracy" in entry) == score
        winner = max(first["scores"], key=first["scores"].get)  # the first of equals
        assert first["go on"] == last["go on"] == list(last["scores"]) == [winner]
        run = folder / "race" / "runs" / winner
        assert last["scores"][winner] == read_json(run / "metrics.json")["score"]
        [loser] = set(first["scores"]) - {winner}
        assert not (folder / "race" / "runs" / loser / "metrics.json").exists()
        student = summary["students"][str(depth)]
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        assert (folder / student["run"], student["method"]) == (run, recipe["method"]["name"])
        if depth == DEPTHS[0]:
            assert recipe["student"]["from"] == "teacher" and recipe["student"]["keep"] == student["layers"]
            assert student["layers"] in [one["layers"] for one in plan["layers"]["sets"]]
        else:  # cut from the student before it
            assert recipe["student"]["from"] == str(folder / summary["students"][str(DEPTHS[0])]["run"])
            above = summary["students"][str(DEPTHS[0])]["layers"]
            assert student["layers"] == [above[layer - 1] for layer in recipe["student"]["keep"]]
            assert recipe["student"]["keep"] in ([1], [2]) and recipe["teacher"]["model"] == str(taught_by(shrunk))
        assert recipe["train"]["epochs"] == race["epochs"][DEPTHS.index(depth)]
        exported = AutoModelForSequenceClassification.from_pretrained(folder / "students" / str(depth) / "model")
        trained = AutoModelForSequenceClassification.from_pretrained(run / "student")
        ours, theirs = exported.state_dict(), trained.state_dict()
        small, pre_trained = theirs.pop(EMBEDDINGS), AutoModel.from_pretrained(base_folder).get_input_embeddings()
        large = ours.pop(EMBEDDINGS)
        assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
        ids = AutoTokenizer.from_pretrained(base_folder).get_vocab()
        ids_here = AutoTokenizer.from_pretrained(run / "student").get_vocab()
        assert len(small) == len(ids_here) < len(ids)
        for word, place in ids.items():  # words that no text has are as they were
            expected = small[ids_here[word]] if word in ids_here else pre_trained.weight[place]
            assert large[place].equal(expected)
        assert models_of(summary)["2 layers" if depth == 2 else "1 layer"]["chosen_by"] == pytest.approx(
            last["scores"][winner]
        )


def test_rivals_score_what_an_independent_call_gives(shrunk, files, base_folder):
    folder, summary = shrunk
    train, choosing, reported = (str(folder / "data" / f"{name}.parquet") for name in ("train", "choosing", "reported"))
    task = load_task("table", train=train, validation=choosing, test=reported, text="text", label="label")
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    network, _ = load_for_training(str(folder / "base"), task, tokenizer)
    with fast_passes():  # as shrink computes what the encoder makes of the rows that fit
        expected = [tfidf_rival(task), *frozen_rivals(task, network, tokenizer, [2, 4], name="encoder")]
    models = models_of(summary)
    assert [name for name, model in models.items() if model["kind"] == "rival"] == [one.name for one in expected]
    for rival in expected:
        right = []
        for file in (choosing, reported):
            rows = pq.read_table(file).to_pydict()
            labels = np.array([task.label_names.index(label) for label in rows["label"]])
            right.append((np.asarray(rival.predict(rows["text"])) == labels).mean())
        assert models[rival.name]["chosen_by"] == pytest.approx(right[0]), rival.name
        assert models[rival.name]["score"]["value"] == pytest.approx(right[1]), rival.name


def test_the_pages_are_those_of_the_figures(shrunk):
    folder, summary = shrunk
    text, page = (folder / "summary.md").read_text(), (folder / "summary.html").read_text()
    assert text == summary_page(summary)
    assert "encoder (which has no trained head for these labels), with a fitted head, fine-tuned for 6 epochs" in text
    assert "Proposed: " in text and f"**{summary['chosen']['name']}**" in text
    assert "<svg" in page or "data:image" in page
    for model in summary["models"]:
        assert model["name"] in page and f"{model['p50_ms']:.2f} ms" in page
    assert not (folder / "race" / "caches").exists()


def test_a_finished_folder_is_left_as_it_is(shrunk, base_folder, files, monkeypatch):
    folder, summary = shrunk
    monkeypatch.setattr(limbeck.shrink.pipeline, "_Pipeline", None)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert shrink(request(base_folder, files), folder) == summary
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def chosen_independently(summary, budget):
    """Return the name of the best student within milliseconds, or of the knee where there is no budget."""
    students = [model for model in summary["models"] if model["kind"] == "student"]
    if budget is not None:
        return max(
            (model for model in students if model["p50_ms"] <= budget),
            key=lambda model: (model["chosen_by"], -model["p50_ms"]),
        )["name"]
    better = []
    for model in sorted(students, key=lambda model: (model["p50_ms"], -model["chosen_by"])):
        if all(model["chosen_by"] > other["chosen_by"] + summary["chosen"]["noise"] for other in better):
            better.append(model)
    if len(better) < 3:
        return better[-1]["name"]
    across, up = np.log([model["p50_ms"] for model in better]), np.array([model["chosen_by"] for model in better])
    above = (up - up[0]) / (up[-1] - up[0]) - (across - across[0]) / (across[-1] - across[0])
    return better[int(np.argmax(above))]["name"]


def test_without_a_budget_the_knee_is_proposed(shrunk):
    folder, summary = shrunk
    right, rows = models_of(summary)["teacher"]["chosen_by"], summary["rows"]["choosing"]
    assert summary["chosen"]["noise"] == pytest.approx((right * (1 - right) / rows) ** 0.5, rel=0.3)
    name = chosen_independently(summary, None)
    assert summary["budget"] is None and summary["chosen"]["name"] == name and summary["chosen"]["met"]
    assert folder / summary["chosen"]["folder"] == folder / model_places()[name]
    assert (folder / summary["chosen"]["folder"]).is_dir()


@pytest.mark.parametrize(
    ("budget", "met"), [pytest.param("100000ms", True, marks=pytest.mark.slow), ("0.00001ms", False)]
)
def test_a_budget_and_a_teacher_as_it_is_given(budget, met, shrunk, files, tmp_path, plain):
    """Give a model that knows the task, where no other form can be had."""
    teacher = taught_by(shrunk)
    summary = shrink(request(teacher, files, budget=budget), tmp_path / "out")
    assert not (tmp_path / "out" / "teacher").exists() and summary["teacher"]["epochs"] is None
    text = (tmp_path / "out" / "summary.md").read_text()
    assert f"The teacher is {teacher.name}, as it was given." in text
    assert "Not exported: ONNX: This needs onnxruntime: pip install 'limbeck[onnx]'." in text
    models = models_of(summary)
    assert {name for name, model in models.items() if model["kind"] != "rival"} == {"teacher", "2 layers", "1 layer"}
    assert summary["chosen"]["met"] == met and all(model["within_budget"] == met for model in models.values())
    fastest = min((models[name] for name in ("2 layers", "1 layer")), key=lambda model: model["p50_ms"])["name"]
    assert summary["chosen"]["name"] == (chosen_independently(summary, 1e5) if met else fastest)
    assert (
        f"The best within {budget}: " if met else f"The budget of {budget} could not be met. The fastest is"
    ) in text
    lengths = AutoTokenizer.from_pretrained(tmp_path / "out" / "base")([row["text"] for row in rows_of(files[0])])[
        "input_ids"
    ]
    assert np.mean([len(ids) <= summary["timed"]["length"] for ids in lengths]) >= 0.95


def test_who_is_a_teacher(shrunk, base_folder, teacher_folder, files):
    train, dev = map(str, files)
    task = load_task("table", train=train, validation=dev, text="text", label="label")
    assert reason_to_fine_tune(str(base_folder), task) == "which has no trained head for these labels"
    # its head has the right labels and random weights
    assert reason_to_fine_tune(str(teacher_folder), task) == "whose head does not know these labels"
    assert reason_to_fine_tune(str(taught_by(shrunk)), task) == ""


@pytest.mark.parametrize("rate", [0.5, 1e-12])
def test_a_teacher_that_training_did_not_improve_keeps_its_fitted_head(rate, shrunk, base_folder, tmp_path):
    """Train so fast that all is forgotten, and so slowly that nothing is learned."""
    folder, _ = shrunk
    block = yaml.safe_load((folder / "teacher-run" / "recipe.yaml").read_text())["task"]
    recipe = Trainings(block, 32, 4, 200, 0).teacher(str(base_folder), 0.2)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"learning_rate": rate})})
    options = {key: value for key, value in block.items() if key not in ("name", "max_length", "too_long", "padding")}
    task = load_task("table", **options)
    folders = TeacherFolders(*(tmp_path / name for name in ("fitted", "run", "best")))
    found = train_teacher(recipe, task, folders)
    scores = {point["share"]: point["score"] for point in found["points"]}
    assert scores[found["share"]] >= scores[1.0] and found["model"] == str(folders.best)
    if rate == 0.5:
        assert found["share"] == 0.0
    rows = pq.read_table(block["validation"]).to_pydict()
    write_csv(tmp_path / "dev.csv", list(zip(rows["text"], rows["label"], strict=True)))
    given = answers(folders.best, tmp_path / "dev.csv", tmp_path / "given.csv")
    assert np.mean(np.array(given) == rows["label"]) == pytest.approx(scores[found["share"]])


@pytest.mark.parametrize(("minutes", "candidates"), [(0.1, 2), pytest.param(0.14, 4, marks=pytest.mark.slow)])
def test_it_goes_on_where_it_stopped(
    minutes, candidates, shrunk, base_folder, files, tmp_path, monkeypatch, command, plain
):
    """Stop in the race, go on with a student that fails, then to the end: all as if nothing had happened."""
    train, dev = files
    words = ["shrink", "--model", base_folder, "--data", train, "--dev", dev, "--text", "text", "--label", "label"]
    words += ["--minutes", minutes]
    original, calls = limbeck.study.jobs.execute, []

    def breaking(error, at):
        def execute(recipe, folder, **options):
            calls.append((Path(folder).name, options["pause_after"]))
            if len(calls) in at or Path(folder).name in at:
                raise error
            return original(recipe, folder, **options)

        return execute

    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(None, ()))
    assert command(*words, "-o", "whole")[0] == 0
    every, failing = list(calls), calls[-1][0]
    for number in (2, 2):  # in the first rung, and after it
        calls.clear()
        monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(KeyboardInterrupt(), [number]))
        code, said = command(*words, "-o", "out")
        assert code == 130 and "Interrupted. The same command continues out" in said
        assert "decisions" not in read_json(tmp_path / "out" / "plan.json")["race"]
    calls.clear()
    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(RuntimeError("no luck"), [failing]))
    code, said = command(*words, "-o", "out")
    assert code == 0 and "RuntimeError: no luck" in said
    assert list(read_json(tmp_path / "out" / "summary.json")["failed"]) == [failing]
    calls.clear()
    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(None, ()))
    code, said = command(*words, "-o", "out")
    assert code == 0 and "no luck" not in said and len(calls) < len(every)
    plans = [read_json(tmp_path / name / "plan.json") for name in ("out", "whole")]
    assert plans[0]["race"]["candidates"] == candidates
    assert plans[0]["race"] == plans[1]["race"] and plans[0]["layers"] == plans[1]["layers"]
    ours, theirs = (read_json(tmp_path / name / "summary.json") for name in ("out", "whole"))
    for key in ("rows", "majority", "students", "race", "vocabulary", "failed"):
        assert ours[key] == theirs[key], key
    for name, model in models_of(ours).items():
        other = models_of(theirs)[name]
        assert [model[key] for key in ("score", "chosen_by", "agreement", "parameters")] == [
            other[key] for key in ("score", "chosen_by", "agreement", "parameters")
        ], name
    for student in ours["students"].values():
        assert_same_weights(tmp_path / "out" / student["run"], tmp_path / "whole" / student["run"])


def test_where_no_student_can_be_trained_there_is_one_message(shrunk, files, tmp_path, monkeypatch, command):
    def execute(*_, **__):
        raise RuntimeError("no luck")

    monkeypatch.setattr(limbeck.study.jobs, "execute", execute)
    words = ["--model", taught_by(shrunk), "--data", files[0], "--dev", files[1], "--text", "text"]
    code, said = command("shrink", *words, "--label", "label", "--minutes", 0.1, "-o", "out")
    assert code == 1 and said.count(" Error:") == 1
    assert "No student could be trained: RuntimeError: no luck" in said and not (tmp_path / "out/summary.json").exists()
    assert list((tmp_path / "out" / "race" / "failures").iterdir())


@pytest.mark.slow
def test_unlabelled_rows_are_labelled_by_the_teacher(shrunk, files, tmp_path, plain):
    """Give new texts, some twice, and some that are validation or training rows: those must not come in again."""
    new = [text for text, _ in sentences(50, seed=9)]
    known = [rows_of(files[0])[0]["text"], rows_of(files[1])[0]["text"]]
    labelled = {row["text"] for file in files for row in rows_of(file)}
    (tmp_path / "more.csv").write_text("text\n" + "".join(f"{text}\n" for text in [*new, *new[:5], *known]))
    teacher = taught_by(shrunk)
    shrink(request(teacher, files, unlabelled=str(tmp_path / "more.csv")), tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "data" / "taught.parquet").to_pylist()
    assert rows[:200] == rows_of(files[0])
    added = rows[200:]
    assert [row["text"] for row in added] == [text for text in dict.fromkeys(new) if text not in labelled]
    write_csv(tmp_path / "asked.csv", [(row["text"], "?") for row in added])
    assert answers(teacher, tmp_path / "asked.csv", tmp_path / "given.csv") == [row["label"] for row in added]
    for run in (tmp_path / "out" / "race" / "runs").iterdir():
        assert yaml.safe_load((run / "recipe.yaml").read_text())["task"]["train"].endswith("taught.parquet")


def changed(file, kind, output):
    """Write the rows of a file with other labels, or as pairs, in the form that a user would have them in."""
    rows = rows_of(file)
    for number, row in enumerate(rows):
        words = row["text"].split()
        named = [row["label"]] + ["long"] * (len(words) > 6) + ["odd"] * (number % 2)
        if kind == "numbers":
            row["label"] = len(words) / 3 + number % 2
        elif kind == "pairs":
            row |= {"text": " ".join(words[: len(words) // 2]), "second": " ".join(words[len(words) // 2 :])}
        else:
            row["label"] = "; ".join(named) if kind == "separated" else named
    path = output / f"{file.stem}.{'csv' if kind == 'separated' else 'jsonl'}"
    if kind == "separated":
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "metric", "options"),
    [
        ("numbers", "pearson", {}),
        ("lists", "micro_f1", {}),
        ("separated", "micro_f1", {"separator": ";"}),
        ("pairs", "accuracy", {"text": ("text", "second")}),
    ],
)
def test_other_problems(kind, metric, options, base_folder, files, tmp_path, plain):
    """Go all the way to the page and the forms that are served, and score those independently."""
    made = [changed(file, kind, tmp_path) for file in files]
    out = tmp_path / "out"
    summary = shrink(request(base_folder, made, **options), out)
    assert summary["metric"] == metric and not summary["failed"]
    assert metric in (out / "summary.md").read_text()
    assert len([model for model in summary["models"] if model["kind"] == "rival"]) == 3
    rows = pq.read_table(out / "data" / "reported.parquet").to_pylist()
    given = tmp_path / "reported.jsonl"
    given.write_text("".join(json.dumps({**row, "label": ""}) + "\n" for row in rows))
    for name, place in (("2 layers", "students/2/model"), ("1 layer", "students/1/model")):
        to = tmp_path / f"{name}.jsonl"
        predict_file(out / place, given, to, text=list(options.get("text", ["text"])))
        found = [json.loads(line)["prediction"] for line in to.read_text().splitlines()]
        labels = [row["label"] for row in rows]
        if kind == "numbers":
            expected = np.corrcoef(found, labels)[0, 1]
        elif kind == "pairs":
            expected = np.mean([one == other for one, other in zip(found, labels, strict=True)])
        else:
            names = sorted({name for label in labels for name in label})
            sides = [[[name in answer for name in names] for answer in side] for side in (labels, found)]
            expected = f1_score(*map(np.array, sides), average="micro")
        assert models_of(summary)[name]["score"]["value"] == pytest.approx(expected, abs=1e-6), name


BAD = {
    "column": (["--label", "intent"], "intent"),
    "text": (["--text", "sentence"], "sentence"),
    "file": (["--data", "trian.csv"], "trian.csv does not exist. Did you mean 'train.csv'"),
    "unlabelled": (["--unlabelled", "trian.csv"], "trian.csv does not exist. Did you mean 'train.csv'"),
    "unlabelled column": (["--unlabelled", "other.csv"], "'text'"),
    "budget": (["--budget", "abc"], "The budget 'abc' is not understood"),
    "fast": (["--budget", "2x"], "write 0.5x"),
    "zero": (["--budget", "0x"], "leaves no time"),
    "one label": (["--data", "same.csv"], "every row has the label 'positive'"),
    "few": (["--data", "few.csv"], "few.csv has 60 rows, of which a tenth, 6, would be held out"),
    "few dev": (["--dev", "tiny.csv"], "tiny.csv has 6 rows, too few to tell one student from another"),
    "few train": (["--data", "tiny.csv", "--dev", "few.csv"], "tiny.csv has 6 rows, too few to train on"),
    "model": (["--model", "nowhere"], "Cannot load 'nowhere'"),
    "output": (["-o", "taken"], "taken holds something else"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_with_one_message(case, base_folder, command, tmp_path):
    words, message = BAD[case]
    write_csv(tmp_path / "train.csv", sentences(240))
    write_csv(tmp_path / "few.csv", sentences(60))
    write_csv(tmp_path / "tiny.csv", sentences(6))
    write_csv(tmp_path / "other.csv", sentences(6), header="sentence,label")
    write_csv(tmp_path / "same.csv", [(text, "positive") for text, _ in sentences(240)])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    defaults = {"--model": base_folder, "--data": "train.csv", "--text": "text", "--label": "label", "-o": "out"}
    given = defaults | dict(zip(words[::2], words[1::2], strict=True))
    code, said = command("shrink", *(word for pair in given.items() for word in pair))
    assert code == 1 and said.count("Error:") == 1 and message in said
    assert not (tmp_path / "out").exists()  # so that the right words may name it


def test_what_was_killed_before_its_first_decision_goes_on(base_folder, files, tmp_path, monkeypatch, command):
    def killed(*_):
        raise KeyboardInterrupt

    words = ["--model", base_folder, "--data", files[0], "--dev", files[1], "--text", "text", "--label", "label"]
    monkeypatch.setattr(limbeck.shrink.pipeline, "reason_to_fine_tune", killed)
    for _ in range(2):
        code, said = command("shrink", *words, "-o", "out")
        assert code == 130 and "The same command continues out" in said, said
    code, said = command("shrink", *words, "--seed", 1, "-o", "out")
    assert code == 1 and "differs in: seed (0 there, 1 now)" in said
