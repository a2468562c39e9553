"""Check that shipped studies are valid, fit the models that they name, and together hold the papers' scores."""

from __future__ import annotations

import re
from functools import cache

import pytest

from limbeck.compare.significance import MARKS
from limbeck.distillation.pair import ModelShape, Pair
from limbeck.methods import find_method
from limbeck.models.kept_layers import layers_to_keep
from limbeck.recipes.files import read_recipe, shipped_recipes
from limbeck.recipes.recipe import load_recipe
from limbeck.study.chains import all_points, first_point, resolve_space, waits_for
from limbeck.study.description import TASK_PLACEHOLDER, Study, short_task
from limbeck.study.loading import list_studies, load_study, shipped_studies

NAMES = list(list_studies())
FULL = [name for name in NAMES if not name.endswith("/small")]
SMALL = [name for name in NAMES if name.endswith("/small")]
SMALL_TASKS = {"glue/rte", "glue/mrpc", "glue/cola", "glue/stsb", "glue/wnli"}

# layers, width, heads
LARGE, BASE, GTE = (24, 1024, 16), (12, 768, 12), (12, 384, 12)
TEACHERS = {
    "bert-large-uncased": ("bert", *LARGE),
    "roberta-large": ("roberta", *LARGE),
    "bert-base-uncased": ("bert", *BASE),
    "roberta-base": ("roberta", *BASE),
    "gpt2": ("gpt2", *BASE, True),
    "thenlper/gte-small": ("bert", *GTE),
}
HALF = (6, 768, 12)
STUDENTS = {
    "bert-base-uncased": ("bert", *BASE),
    "distilbert-base-uncased": ("distilbert", *HALF),
    "distilgpt2": ("gpt2", *HALF, True),
    "huawei-noah/TinyBERT_General_6L_768D": ("bert", *HALF),
    "google/bert_uncased_L-6_H-768_A-12": ("bert", *HALF),
    "nreimers/MiniLMv2-L6-H768-distilled-from-BERT-Base": ("bert", *HALF),
    "models/MiniLM-L6-H768-uncased": ("bert", *HALF),
    "models/MiniLMv2-L6-H768-from-RoBERTa-base": ("roberta", *HALF),
}


@cache
def loaded(name: str) -> Study:
    return load_study(name)


def cells(study: Study):
    return [(task, label) for task in study.tasks for label in study.labels(task)]


def recipe_of(study: Study, task: str, label: str) -> str | None:
    name = study.methods[label].get("recipe")
    return name and name.replace(TASK_PLACEHOLDER, short_task(task))


PAPERS = ("# Anonymous (ACL submission), ", "# Jung et al. 2023, ", "# Huang et al. 2023, ", "# Saadi et al. 2023, ")
OWN = {"first": "# A first study", "evidence": "# Do the papers' methods help"}  # of no paper's table


@pytest.mark.parametrize("name", NAMES)
def test_every_study_is_valid(name):
    study = loaded(name)
    assert len(study.present_baselines) <= len(MARKS)
    assert all(study.labels(task) for task in study.tasks)
    assert {label for _, label in cells(study)} == set(study.methods)


def test_every_name_has_a_description():
    assert [name for name, about in list_studies().items() if not about] == []


@pytest.mark.parametrize("name", shipped_studies())
def test_every_file_opens_with_what_it_is_and_how_to_run_it(name):
    text = shipped_studies()[name].read_text()
    head = re.match(r"(#.*\n)+", text)[0]
    variants = [known.rpartition("/")[2] for known in NAMES if known.startswith(f"{name}/")]
    assert head.startswith(OWN.get(name, PAPERS))
    assert set(re.findall(r"limbeck study (\S+)", head)) == {name, *(f"{name}/{variant}" for variant in variants)}
    assert (
        set(variants)
        == set(re.findall(r"^# ([a-z]+): ", head, flags=re.MULTILINE))
        >= (set() if name in OWN else {"small"})
    )
    assert max(map(len, text.splitlines())) <= 120


def test_the_studies_hold_every_score_of_the_papers():
    named = {recipe_of(loaded(name), *cell) for name in FULL for cell in cells(loaded(name))}
    # a study makes its teachers itself
    recipes = {name: recipe for name, recipe in shipped_recipes().items() if not name.endswith("-teacher")}
    printed = {name for name, recipe in recipes.items() if recipe.values.get("reported")}
    assert len(printed) > 250
    assert {name for name in printed - named if not name.endswith("-teacher")} == set()  # which studies fine-tune


@pytest.mark.parametrize("name", FULL)
def test_recipes_are_of_the_task_the_teacher_and_the_paper(name):
    study = loaded(name)
    teacher, paper = study.teacher.model.removesuffix("-uncased"), shipped_head(name)
    for task, label in cells(study):
        recipe = recipe_of(study, task, label)
        if recipe is None:
            continue
        values = read_recipe(recipe).values
        assert values["task"]["name"] == task
        if values.get("teacher"):
            assert values["teacher"]["model"].startswith(f"runs/{teacher}-")
        assert {score["where"].partition(",")[0] for score in values["reported"]} <= {paper}


def shipped_head(name: str) -> str:
    """Return the paper that a study's first line names: ``Jung et al. 2023``."""
    return list_studies()[name.partition("/")[0]].partition(",")[0]


@pytest.mark.parametrize("name", NAMES)
def test_methods_fit_the_models(name):
    study = loaded(name)
    teacher = ModelShape(*TEACHERS[study.teacher.model])
    for task, label in cells(study):
        problem = "regression" if task == "glue/stsb" else "span" if task.startswith("squad/") else "classification"
        point = first_point(study, task, label)
        recipe = load_recipe(values=study.values(task, label, point, 1, "teacher", "off"))
        pair = Pair(student_of(recipe.student, teacher), teacher, problem, 1 if problem == "regression" else 2)
        assert pair.student.depth < teacher.depth
        for stage in recipe.split():
            find_method(stage.method.name)(pair, **stage.method.options)


def student_of(block, teacher: ModelShape) -> ModelShape:
    if block.model is not None:
        return ModelShape(*STUDENTS[block.model])
    source = teacher if block.from_ == "teacher" else ModelShape(*TEACHERS[block.from_])
    depth = len(layers_to_keep(block.keep, source.depth))
    return ModelShape(source.model_type, depth, source.width, source.heads, source.causal)


@pytest.mark.parametrize("name", SMALL)
def test_small_variants_are_small(name):
    study = loaded(name)
    assert set(study.tasks) <= SMALL_TASKS
    assert study.teacher.model == "thenlper/gte-small" and study.teacher.train["epochs"] <= 3
    for task, label in cells(study):
        settled = {other: first_point(study, task, other) for other in waits_for(study, task, label)}
        spaces = [resolve_space(study, task, space, settled) for space in study.steps(task, label)]
        points = [point for space in spaces for point in all_points(space)]
        assert len(points) <= 4
        for point in [{}, *points]:
            point = first_point(study, task, label) | point
            recipe = load_recipe(values=study.values(task, label, point, 1, "teacher", "off"))
            assert recipe.student.from_ in ("teacher", study.teacher.model) and recipe.student.keep == "first:3"
            for stage in recipe.split():
                assert stage.train.epochs <= 3 and stage.train.learning_rate in (5e-5, 1e-4)
                assert stage.task.max_length <= 128


@pytest.mark.parametrize("name", NAMES)
def test_seeds_that_choose_are_not_reported(name):
    study = loaded(name)
    # a paper with one run of each tests one run against one run
    assert len(study.seeds) >= (1 if name.endswith("/paper") else 3 if name == "first" else 4)
    if any(study.steps(*cell) for cell in cells(study)):
        assert set(study.choosing_seeds).isdisjoint(study.seeds)
