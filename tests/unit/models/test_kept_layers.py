from __future__ import annotations

import pytest

from limbeck import load_recipe
from limbeck.errors import RecipeError
from limbeck.models.kept_layers import layers_to_keep, measured_count, parse_keep, stand_in

FORMS = "first:N, last:N, spread:N, uniform:N, ends:N, best:N or a list of blocks such as [1, 3, 5]"


@pytest.mark.parametrize(
    ("keep", "depth", "layers"),
    [
        ("first:6", 12, [1, 2, 3, 4, 5, 6]),
        ("first:1", 12, [1]),
        ("last:3", 12, [10, 11, 12]),
        ("last:12", 12, list(range(1, 13))),
        ("spread:6", 12, [2, 4, 6, 8, 10, 12]),
        ("spread:3", 12, [4, 8, 12]),
        ("spread:5", 12, [2, 4, 7, 9, 12]),
        ("spread:1", 12, [12]),
        ("spread:4", 6, [1, 3, 4, 6]),
        ("uniform:6", 12, [2, 4, 6, 8, 10, 12]),
        ("uniform:5", 12, [2, 4, 7, 9, 12]),
        ("ends:6", 12, [1, 2, 3, 4, 5, 12]),
        ("ends:2", 24, [1, 24]),
        ("ends:1", 12, [12]),
        ("ends:4", 4, [1, 2, 3, 4]),
        ([1, 5, 12], 12, [1, 5, 12]),
        ("4,8,12", 12, [4, 8, 12]),
        ("[4, 8, 12]", 12, [4, 8, 12]),
        ("[4]", 12, [4]),
        ("4,", 12, [4]),
    ],
)
def test_layers_to_keep(keep, depth, layers):
    assert layers_to_keep(keep, depth) == layers


@pytest.mark.parametrize(
    "keep", ["first", "first:0", "first:-1", "some:3", "first:x", "best:", "4", "4 8", "", "a,b", {}]
)
def test_what_is_not_understood_is_answered_with_every_form(keep):
    with pytest.raises(RecipeError) as raised:
        layers_to_keep(keep, 12)
    assert str(raised.value) == f"student.keep: {keep!r} is not understood. Write {FORMS}."


@pytest.mark.parametrize("keep", [[], [0, 1], [3, 2], [2, 2], "3,2", "[0, 1]", [1.0], [True]])
def test_lists_that_name_no_layers(keep):
    with pytest.raises(RecipeError, match=r"must be increasing block numbers from 1 on\. Write first:N"):
        layers_to_keep(keep, 12)


def test_more_layers_than_there_are():
    with pytest.raises(
        RecipeError, match=r"\[4, 13\] must be increasing block numbers from 1 to 12, the source's depth"
    ):
        layers_to_keep("4,13", 12)
    for keep in ("ends:13", "best:13"):
        with pytest.raises(RecipeError, match=f"'{keep}' asks for 13 layers, but the source has 12"):
            layers_to_keep(keep, 12)


def test_best_is_measured_and_has_a_stand_in():
    assert parse_keep("best:6") == "best:6" and measured_count("best:6") == 6
    assert measured_count("first:6") is measured_count([1, 2]) is measured_count(None) is None
    assert stand_in("best:3", 12) == [1, 2, 3] and stand_in("ends:2", 12) == [1, 12] and stand_in([1, 3], 4) == [1, 3]
    with pytest.raises(RecipeError, match="'best:13' asks for 13 layers, but the source has 12"):
        stand_in("best:13", 12)
    with pytest.raises(RecipeError, match=r"'best:6' is known only after a comparison .* write first:N"):
        layers_to_keep("best:6", 12)


RECIPE = {
    "task": {"name": "glue/rte"},
    "teacher": {"model": "t"},
    "student": {"from": "teacher", "keep": "first:6"},
    "method": {"name": "kd"},
}


@pytest.mark.parametrize("text", ["4,8,12", "[4,8,12]", "[4, 8, 12]", "'4, 8, 12'", '"[4,8,12]"'])
def test_overrides_name_lists(text):
    assert load_recipe(values=RECIPE, overrides=[f"student.keep={text}"]).student.keep == [4, 8, 12]


@pytest.mark.parametrize("text", ["middle:3", "6", "[6, 4]", "first:99999999999999999999", "{a: 1}", "x" * 5000])
def test_a_recipe_says_at_once_what_is_wrong(text):
    with pytest.raises(RecipeError) as raised:
        load_recipe(values=RECIPE, overrides=[f"student.keep={text}"])
    said = str(raised.value)
    assert "1 mistake" in said and "student.keep: " in said and "or a list of blocks such as [1, 3, 5]" in said
    assert len(said) < 400
