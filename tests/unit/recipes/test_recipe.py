from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

import limbeck
from limbeck.errors import RecipeError
from limbeck.recipes.files import shipped_recipes
from limbeck.recipes.recipe import load_recipe

GOOD = {
    "task": {"name": "glue/rte"},
    "teacher": {"model": "runs/teacher"},
    "student": {"from": "teacher", "keep": "first:6"},
    "method": {"name": "kd"},
}


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_valid_and_opens_with_how_to_run_it(name):
    assert shipped_recipes()[name].about
    # the papers did not train in half precision
    assert {stage.train.precision for stage in load_recipe(name).split()} == {"float32"}


@pytest.mark.parametrize(
    "path", sorted(Path(limbeck.__file__).parent.glob("recipes/library/*.yaml")), ids=lambda p: p.stem
)
def test_every_recipe_file_opens_with_how_to_run_it(path):
    head = path.read_text().partition("\n\n")[0]
    command = re.search(r"^# Run: +limbeck distill (\S+)", head, flags=re.MULTILINE)
    assert head.startswith("# ") and command and command[1] in shipped_recipes()


def test_defaults_are_written_out():
    recipe = load_recipe(values=GOOD)
    written = yaml.safe_load(recipe.to_yaml())
    assert written["method"] == {"name": "kd", "alpha": 0.5, "temperature": 5.0}
    assert written["train"]["warmup_steps"] == 0.06 and written["train"]["epochs"] == 3.0
    assert written["seed"] == 0 and written["student"] == {
        "from": "teacher",
        "keep": "first:6",
        "vocabulary": "whole",
    }
    assert load_recipe(values=written) == recipe


def test_a_warm_up_in_epochs_stands_for_the_default_and_is_given_once():
    written = yaml.safe_load(load_recipe(values=GOOD, overrides=["train.warmup_epochs=5"]).to_yaml())
    assert written["train"]["warmup_epochs"] == 5 and "warmup_steps" not in written["train"]
    assert load_recipe(values=written).train.warmup_epochs == 5
    for also in ("train.warmup_steps=0", "train.max_steps=100"):
        with pytest.raises(RecipeError, match=f"{also.partition('=')[0]}: .* take warmup_steps"):
            load_recipe(values=GOOD, overrides=["train.warmup_epochs=5", also])


def test_overrides():
    recipe = load_recipe(
        values=GOOD,
        overrides=["method.alpha=0.2", "train.learning_rate=5e-6", "train.weight_decay=1e-2", "student.keep=[1, 3]"],
    )
    assert recipe.method.options["alpha"] == 0.2
    assert recipe.train.learning_rate == 5e-6  # YAML reads 5e-6 as text; a number is meant
    assert recipe.train.options["weight_decay"] == 0.01
    assert recipe.student.keep == [1, 3]


def test_asking_for_steps_chooses_the_strategy():
    options = load_recipe(values=GOOD, overrides=["train.save_steps=5"]).train.options
    assert options["save_strategy"] == "steps" and options["eval_strategy"] == "epoch"


def test_all_mistakes_at_once_with_their_lines(tmp_path):
    path = write(
        tmp_path,
        """task: {name: glue/rtee, max_length: many}
teacher: {modl: runs/teacher}
student: {from: teacher, keep: "first:6", config: {}}
method:
  name: kd
  alpa: 0.5
  temperature: hot
train: {epoch: 3, seed: 1, weight_decay: heavy}
sede: 3
""",
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    message = str(caught.value)
    for expected in (
        "10 mistakes",
        "line 1: task.name: Unknown task 'glue/rtee'. Did you mean 'glue/rte'?",
        "line 1: task.max_length",
        "line 2: teacher.modl: Unknown key 'modl'. Did you mean 'model'?",
        "line 3: student: give exactly one of",
        "line 6: method.alpa: Unknown key 'alpa'. Did you mean 'alpha'?",
        "line 7: method.temperature",
        "seen: 'hot'",
        "line 8: train.epoch: Unknown key 'epoch'. Did you mean 'epochs'?",
        "line 8: train.seed: is not yours to set here",
        "line 8: train.weight_decay",
        "line 9: sede: Unknown key 'sede'. Did you mean 'seed'?",
    ):
        assert expected in message, message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.name=minlm"], "Unknown method 'minlm'"),
        (["method.name=kdd"], "Did you mean 'kd'"),
        (["student={model: a, config: {}}"], "exactly one of"),
        (["student={from: teacher}"], "belong together"),
        (["seed=-1"], "seed"),
        (["method.temperature=0"], "method.temperature"),
        (["method.alpha=1.5"], "method.alpha"),
        (["method={name: fsd, memory: 0}"], "method.memory"),
        (["method={name: cka, layers: [[1]]}"], "method.layers"),
        (["method={name: fcd, norm: l3}"], "method.norm"),
        (["train.epochs=0"], "train.epochs"),
        (["train.hub_token=x"], "must hold no secret"),
        (["task.colour=red"], "Unknown key 'colour'"),
        (["nonsense"], "write key=value"),
        (["seed.deep=1"], "not a block"),
    ],
)
def test_single_mistakes(changes, message):
    values = copy.deepcopy(GOOD) | {"seed": 0}
    with pytest.raises(RecipeError, match=message):
        load_recipe(values=values, overrides=changes)


def test_a_recipe_that_is_not_yaml(tmp_path):
    with pytest.raises(RecipeError, match="not valid YAML"):
        load_recipe(write(tmp_path, "task: {name: glue/rte\nmethod: ]"))
    with pytest.raises(RecipeError, match="a recipe is a mapping"):
        load_recipe(write(tmp_path, "- just\n- a list\n"))


def test_yaml_tags_run_nothing(tmp_path):
    with pytest.raises(RecipeError, match="not valid YAML"):
        load_recipe(write(tmp_path, "task: !!python/object/apply:os.getcwd []\n"))


def test_unknown_recipe_suggests():
    with pytest.raises(RecipeError, match="Did you mean 'kd-rte'"):
        load_recipe("kd-rtee")


def test_student_from_a_teacher_that_is_not_there():
    with pytest.raises(RecipeError, match=r"set teacher\.model"):
        load_recipe(values={**GOOD, "teacher": None})
    with pytest.raises(RecipeError, match="tokenizer"):
        load_recipe(values={**GOOD, "teacher": None, "student": {"config": {"model_type": "bert"}}})


FAMILY = """
base:
  task: {name: glue/rte}
  teacher: {model: runs/teacher}
  student: {from: teacher, keep: "first:6"}
  method: {name: kd}
tables:
  - where: paper 9, table 1
    metrics: [accuracy, f1]
    set: {task.name: glue/mrpc}
    rows:
      hot: {set: {method.temperature: 20, grid: {method.alpha: [0.2, 0.5]}}, reported: [[80.1, 0.5], 85.0]}
      ft: {set: {method: {name: ft}}, reported: [79.0]}
"""


def test_rows_of_a_family_are_changes_to_its_base(tmp_path):
    path = write(tmp_path, FAMILY)
    hot = load_recipe(f"{path}/hot", overrides=["seed=3"])
    assert hot.task.name == "glue/mrpc" and hot.method.options == {"alpha": 0.5, "temperature": 20.0} and hot.seed == 3
    assert hot.grid == [{"method.alpha": [0.2, 0.5]}]
    assert [(r.metric, r.value, r.sd) for r in hot.reported] == [("accuracy", 80.1, 0.5), ("f1", 85.0, None)]
    assert load_recipe(f"{path}/ft").method.name == "ft"
    with pytest.raises(RecipeError, match="Did you mean 'hot'"):
        load_recipe(f"{path}/hott")
    with pytest.raises(RecipeError, match="name one of its rows"):
        load_recipe(path)


@pytest.mark.parametrize("broken", ["tables: [{rows: {a: {}}}]", "base: {}\ntables: {a: 1}", "base: {}\ntables: [1]"])
def test_a_family_that_is_not_one(tmp_path, broken):
    with pytest.raises(RecipeError, match="a family has base"):
        load_recipe(f"{write(tmp_path, broken)}/a")


def test_a_grid_is_checked_where_it_goes():
    with pytest.raises(RecipeError, match=r"grid\.method\.alpha: 'x'.*"):
        load_recipe(values={**GOOD, "grid": {"method.alpha": [0.2, "x"]}})
    with pytest.raises(RecipeError, match="Unknown key 'alpa'"):
        load_recipe(values={**GOOD, "grid": {"method.alpa": [0.2]}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("student.from=''", "at least 1 character"),
        ("stages.².train.epochs=1", "seen: stage ²"),
        ("train.optim=adamm", "'adamw_torch'"),
        ("train.save_strategy=never", "'no', 'steps', 'epoch' or 'best'"),
        ("train.report_to=[tensorbord]", "'tensorboard'"),
        ("method.name=':x'", "cannot be imported"),
        ("method.name='.x:y'", "cannot be imported"),
        (f"seed={'x' * 100_000}", "more characters"),
        (f"{'x' * 100_000}=1", "more characters"),
    ],
    ids=lambda value: value[:30],
)
def test_odd_overrides_have_one_short_message(override, message):
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        load_recipe(None, [override], copy.deepcopy(GOOD))
    assert len(str(caught.value)) < 2_000


def test_a_plain_no_is_a_strategy():
    assert load_recipe(None, ["train.save_strategy=no"], copy.deepcopy(GOOD)).train.options["save_strategy"] == "no"


def test_an_override_reaches_each_of_several_teachers():
    teachers = {"teacher": [{"model": "a", "weight": 0.7}, {"model": "b"}]}
    recipe = load_recipe(values=GOOD | teachers, overrides=["teacher.confirmed=true"])
    assert [block.confirmed for block in recipe.teacher.members] == [True, True]
    assert recipe.teacher.weights == pytest.approx((0.7, 0.3)) and recipe.teacher.leading.model == "a"
    written = yaml.safe_load(recipe.to_yaml())["teacher"]
    assert [block["model"] for block in written] == ["a", "b"]
    assert load_recipe(values=yaml.safe_load(recipe.to_yaml())).teacher == recipe.teacher
