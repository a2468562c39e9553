"""Check what an analysis measures in tiny runs against plain transformers and on cases with known answers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from helpers.saved_runs import read_json, student_weights
from helpers.tiny_recipes import tiny_recipe
from helpers.tiny_runs import RUNS, recipe_of
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from evidence import dev_terms
from limbeck import execute
from limbeck.analysis import cost
from limbeck.analysis import loaded_run as opened
from limbeck.analysis.analyze import PRESETS, Settings, analyze
from limbeck.analysis.geometry import IntraClassSimilarity, LayerCKA, heat_map
from limbeck.analysis.loaded_run import load_run
from limbeck.analysis.record import TOKEN_NORMS, read_record
from limbeck.inference.relation_difference import RELATIONS, RelationDifference

pytestmark = pytest.mark.usefixtures("quick_collection")
QUICK = Settings(cost=False)


def hashes(folder):
    """Note everything but the analysis."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.parent != folder / "analysis")
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run(run, name):
    path = run(name)
    before = hashes(path)
    (record,) = analyze([path])
    assert hashes(path) == before
    assert read_record(path).values == record.values
    values, arrays = record.values, record.arrays
    taught, student = name != "alone", 4 if name in ("same", "alone") else 2
    assert values["layers"] == {"student": student} | ({"teacher": 4} if taught else {})
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert arrays["layers.students"].shape == (student + 1, student + 1)
    models = {"before", "after"} | ({"teacher"} if taught else set())
    of_classes = RUNS[name].get("problem", "classification") == "classification"
    assert set(values.get("intra_class_similarity", {})) == (models if of_classes else set())
    assert {key.partition(".")[2] for key in arrays if key.startswith("heat_map")} == (models if taught else set())
    if taught:
        assert arrays["layers.before"].shape == arrays["layers.after"].shape == (5, student + 1)
        for model in models:
            found = arrays[f"heat_map.{model}"]
            assert found.shape[0] == found.shape[1] >= 8
            assert values["cka_diagonal"][model] == pytest.approx(np.mean([found[i, i] for i in range(len(found))]))
        assert values["cka_diagonal"]["teacher"] == pytest.approx(1, abs=1e-5)
        assert [row["step"] for row in values["relation_difference"]] == ([0, 1, 2, 3, 4] if name == "fsd" else [0, 4])
        assert all(row[relation] >= 0 for row in values["relation_difference"] for relation in RELATIONS)
    assert len(values["sentences"]) == 2
    for number, sentence in enumerate(values["sentences"]):
        size = len(sentence["tokens"])
        for side in ("teacher", "student") if taught else ("student",):
            assert {arrays[f"tokens.{number}.{side}.{norm}"].shape for norm in TOKEN_NORMS} == {(size, size)}
    check_cost(path, values["cost"], recipe_of(path), name)


def check_cost(path, found, recipe, name):
    words = ("problem", "architecture", "teacher_architecture", "session")
    assert all(value > 0 for key, value in found.items() if key not in words)
    weights = path / "student" / "model.safetensors"
    assert found["disk_bytes"] == weights.stat().st_size
    assert found["parameters"] == read_json(path / "metrics.json")["parameters"] <= found["trained_parameters"]
    assert (found["trained_parameters"] > found["parameters"]) == (name == "fsd")  # its memory
    if name == "alone":
        assert not {"training", "inference", "speedup"} & found.keys()
        return
    assert ("training" in found) == ("inference" in found) == (name != "headless")  # kd needs a head
    if recipe["method"]["name"] == "kd":
        assert found["training"] == 1.0
    assert found.get("inference", 1.0) == 1.0  # every method's student is the recipe's
    assert (found["speedup"] == 1.0) == (name == "same")  # which has its teacher's architecture
    assert found["speedup"] == pytest.approx(found["teacher_milliseconds"] / found["milliseconds"])
    teacher = AutoModelForSequenceClassification.from_pretrained(recipe["teacher"]["model"])
    if name == "kd":
        assert found["teacher_parameters"] == sum(p.numel() for p in teacher.parameters()) > found["parameters"]
        assert (found["batch_size"], found["tokens"]) == (1, min(128, teacher.config.max_position_embeddings))


def test_the_fastest_of_turns(monkeypatch):
    """Leave the first turn out, and let the sides take turns."""
    clock, turns = [0.0], []
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])

    def side(name, seconds):
        def work():
            turns.append(name)
            clock[0] += seconds[turns.count(name) - 1]

        return work

    found = cost.fastest([side("a", [1.0, 5.0, 4.0, 6.0]), side("b", [9.0, 2.0, 3.0, 2.5])], repeats=3)
    assert found == pytest.approx([4.0, 2.0]) and "".join(turns) == "abababab"


def seen_by(model, batch):
    """Return every layer's hidden states, from transformers itself."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        return model.eval()(**{name: batch[name] for name in names}, output_hidden_states=True).hidden_states


def pooled(layers, mask, pool):
    counts = mask.sum(1)
    if pool == "mean":
        return [(layer * mask[..., None]).sum(1) / counts[:, None] for layer in layers]
    if pool == "flat":  # padded to task.max_length
        width = 16 - mask.shape[1]
        return [torch.nn.functional.pad(layer * mask[..., None], (0, 0, 0, width)).flatten(1) for layer in layers]
    return [layer[torch.arange(len(mask)), 0 if pool == "cls" else counts - 1] for layer in layers]


@pytest.mark.parametrize(
    ("pool", "layer", "size"),
    [("mean", "last", None), ("cls", "penultimate", None), ("last", "last", None), ("flat", "penultimate", 8)],
)
def test_against_plain_transformers(run, pool, layer, size):
    path = run("kd")
    how = {"pool": pool, "layer": layer, "estimator": "biased"}
    (record,) = analyze([path], Settings(**how, batch_size=size, cost=False))
    assert pool != "flat" or PRESETS["jung2023"] == how
    batches = list(load_run(path, 1000, batch_size=size).batches())
    ids = [number for batch in batches for number in batch["ids"].tolist()]
    assert sorted(ids) == list(range(40)) != ids and {len(batch["ids"]) for batch in batches} == {size or 5}
    teacher, after = map(AutoModel.from_pretrained, (recipe_of(path)["teacher"]["model"], path / "student"))
    step = 0 if layer == "last" else 1
    cka = {name: LayerCKA() for name in ("layers.before", "layers.after", "layers.students")}
    relations, classes, rows = (
        {name: make() for name in ("teacher", "before", "after")}
        for make in (RelationDifference, IntraClassSimilarity, list)
    )
    for batch in batches:
        mask = batch["attention_mask"].bool()
        theirs = seen_by(teacher, batch)
        # the student before training has the teacher's first two layers
        models = {"teacher": theirs, "before": theirs[:3], "after": seen_by(after, batch)}
        samples = {name: pooled(layers, mask, pool) for name, layers in models.items()}
        for name, layers in models.items():
            place = len(layers) - 1 - step
            rows[name].append(samples[name][place])
            classes[name].update(samples[name][place], batch["labels"])
            relations[name].update(layers[place], theirs[4 - step], mask)
        for name in ("before", "after"):
            cka[f"layers.{name}"].update(samples["teacher"], samples[name])
        cka["layers.students"].update(samples["before"], samples["after"])
    expected = {name: found.value() for name, found in cka.items()}
    expected |= {f"heat_map.{name}": heat_map(rows["teacher"], found, "biased") for name, found in rows.items()}
    for name, array in expected.items():
        assert record.arrays[name] == pytest.approx(array, abs=1e-4), name
    for row, name in zip(record.values["relation_difference"], ("before", "after"), strict=True):
        assert {relation: row[relation] for relation in RELATIONS} == pytest.approx(relations[name].values(), rel=1e-4)
    similarities = {name: found.per_batch() for name, found in classes.items()}
    assert record.values["intra_class_similarity"] == pytest.approx(similarities, rel=1e-4)
    pooled_values = {name: found.pooled() for name, found in classes.items()}
    assert record.values["intra_class_similarity_pooled"] == pytest.approx(pooled_values, rel=1e-4)
    assert len({round(value, 4) for value in similarities.values()}) == 3


def test_relation_difference_at_some_steps_of_a_training(table_files, teacher_folder, tmp_path):
    """Measure both layers at 0, 2 and 4 of 4 steps without a checkpoint, and without a change to the training."""
    train = {"epochs": 1, "batch_size": 24, "learning_rate": 1e-3}
    runs = []
    for points in ({"relation_points": 2}, {}):
        recipe = tiny_recipe(table_files, teacher_folder, train=train | points)
        runs.append(execute(recipe, tmp_path / f"run-{len(points)}").path)
    measured, plain = runs
    assert all(torch.equal(w, student_weights(plain)[name]) for name, w in student_weights(measured).items())
    assert not (measured / "checkpoints").exists() and not (plain / "relations.json").exists()
    found = read_json(measured / "relations.json")
    loaded = load_run(measured, 1000)
    teacher, after = map(AutoModel.from_pretrained, (teacher_folder, measured / "student"))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    rows = {row["ids"] if "ids" in row else row["id"]: row for row in loaded.data.splits["validation"]}
    for layer, below in (("last", 0), ("penultimate", 1)):
        assert [row["step"] for row in found[layer]] == [0, 2, 4]
        for point, model in ((0, None), (-1, after)):
            relations = RelationDifference()
            for start in range(0, 40, 5):
                batch = loaded.data.collate([rows[number] for number in order[start : start + 5]])
                theirs = seen_by(teacher, batch)
                # the student before training has the teacher's first two layers
                ours = theirs[:3] if model is None else seen_by(model, batch)
                relations.update(ours[2 - below], theirs[4 - below], batch["attention_mask"].bool())
            expected = relations.values()
            assert {name: found[layer][point][name] for name in RELATIONS} == pytest.approx(expected, rel=1e-4)
        (record,) = analyze([measured], Settings(layer=layer, cost=False))
        assert record.values["relation_difference"] == found[layer]


def test_token_relations_against_plain_transformers(run):
    path = run("kd")
    (record,) = analyze([path], Settings(sentences=("the cat sees a dog",), cost=False))
    batch = AutoTokenizer.from_pretrained(path / "student")("the cat sees a dog", return_tensors="pt")
    for side, source in (("teacher", recipe_of(path)["teacher"]["model"]), ("student", path / "student")):
        tokens = seen_by(AutoModel.from_pretrained(source), batch)[-1][0].double()
        normal = {
            "none": tokens,
            "l2": tokens / tokens.norm(dim=1, keepdim=True),
            "layernorm": torch.nn.functional.layer_norm(tokens, tokens.shape[1:]),
            "softmax": tokens.softmax(dim=1),
        }
        for norm, rows in normal.items():
            assert record.arrays[f"tokens.0.{side}.{norm}"] == pytest.approx(
                (rows @ rows.T).numpy(), rel=1e-3, abs=1e-4
            )


def test_a_student_that_is_its_teacher(run):
    (record,) = analyze([run("same")], QUICK)
    values, arrays = record.values, record.arrays
    for name in ("layers.before", "layers.after", "layers.students"):
        assert arrays[name].diagonal() == pytest.approx(np.ones(5), abs=1e-5)
    for name in ("before", "after"):
        assert arrays[f"heat_map.{name}"] == pytest.approx(arrays["heat_map.teacher"], abs=1e-5)
    for row in values["relation_difference"]:
        assert {name: row[name] for name in RELATIONS} == pytest.approx(dict.fromkeys(RELATIONS, 0), abs=1e-5)
    assert values["intra_class_similarity"]["after"] == pytest.approx(values["intra_class_similarity"]["teacher"])
    for norm in TOKEN_NORMS:
        assert arrays[f"tokens.0.student.{norm}"] == pytest.approx(arrays[f"tokens.0.teacher.{norm}"], abs=1e-4)


@pytest.mark.parametrize("name", ["narrow", "stages"])
def test_the_student_before_training_is_the_one_that_training_began_with(run, trained, name):
    """Make it again: its weights were random, or those of the stage before."""
    models = load_run(run(name), 8)
    source = trained(name) / "stage-1" if name == "stages" else trained(name)  # which was not changed by training
    weights = AutoModelForSequenceClassification.from_pretrained(source / "student").state_dict()
    after = models.after.state_dict()
    for key, value in models.before.state_dict().items():
        assert torch.allclose(value, weights[key], atol=1e-20), key
    assert all(torch.allclose(after[key], weights[key], atol=1e-20) for key in after) == (name == "narrow")


def same_rows(ours, theirs):
    return [pytest.approx(row, rel=1e-5) for row in theirs] == ours


def test_checkpoints(run):
    path = run("fsd")
    kept = analyze([path], QUICK)[0].values["relation_difference"]
    assert len({row["inter_euclidean"] for row in kept}) == 4 and kept[1] == kept[0] | {"step": 1}  # the warm-up
    metrics = path / "metrics.json"
    text = metrics.read_text()
    assert '"steps": 4' in text
    metrics.write_text(text.replace('"steps": 4', '"steps": 9'))  # so that the last checkpoint is no longer the end
    again = analyze([path], QUICK, force=True)[0].values["relation_difference"]
    assert [row["step"] for row in again] == [0, 1, 2, 3, 4, 9] and same_rows(again[:5], kept)


def test_a_memory_larger_than_the_sample_of_the_training_data(run, monkeypatch):
    monkeypatch.setattr(opened, "_TRAINING_EXAMPLES", 3)  # of 4 centroids
    assert analyze([run("fsd")])[0].values["cost"]["training"] > 0


def test_terms_on_validation_data_and_how_hard_they_pull(run, tmp_path):
    """Compute the task's loss in plain transformers: before training, after it, and its gradient with its weight."""
    kd, fsd = (load_run(run(name), 1000) for name in ("kd", "fsd"))
    found = dev_terms.measure_terms(kd, {"kd": kd, "fsd": fsd}, tmp_path)
    models = {"before": kd.before, "kd": kd.after, "fsd": fsd.after}
    inputs = ("input_ids", "attention_mask", "labels")
    batches = [{name: batch[name] for name in inputs} for batch in kd.batches()]
    for name, model in models.items():
        losses = [model(**batch).loss.item() for batch in batches]
        assert found["terms"][name]["task"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert len({values["kd"] for values in found["terms"].values()}) == 3
    pulls = []
    for batch in batches[: dev_terms._PULLS]:
        kd.before.zero_grad()
        (kd.parts.distiller.objective.weights["task"] * kd.before(**batch).loss).backward()
        norms = [weight.grad.double().norm() for weight in kd.before.parameters() if weight.grad is not None]
        pulls.append(torch.stack(norms).norm().item())
    assert found["pulls"]["task"] == pytest.approx(np.mean(pulls), rel=1e-5)
    # FSD's memory was prepared from the training data, and is not kept
    assert set(dev_terms.measure_terms(fsd, {}, tmp_path)["pulls"]) == {"task", "kd", "intra", "local"}
