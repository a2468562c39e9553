"""The page about families says of each what its entry and transformers say."""

from __future__ import annotations

import dataclasses
import re

import pytest
from helpers.paths import ROOT
from helpers.tiny_models import tiny_model

from limbeck import Family
from limbeck.errors import ModelError
from limbeck.models.families import FAMILIES, has_raw_scores
from limbeck.models.family_table import REFUSED
from limbeck.models.heads import model_class

PAGE = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")


def table(first):
    """Return the rows of the table whose first column has that name, by the code in this column."""
    lines = PAGE.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


ROWS = table("family")


def test_the_table_has_every_family_once():
    assert len(re.findall(r"^\| `", PAGE.partition("| family |")[2].partition("\n\n")[0], flags=re.M)) == len(ROWS)
    assert set(ROWS) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_says_what_the_family_can_do(family):
    model = tiny_model(family)
    _, tags, answers, text, scores = ROWS[family]
    for cell, problem in ((tags, "tokens"), (answers, "span")):
        if cell == "yes":
            assert model_class(problem, model.config)
        else:
            assert cell == "no"
            with pytest.raises(ModelError, match="has no"):
                model_class(problem, model.config)
    assert text == ("next token" if FAMILIES[family].causal else "masked")
    assert model_class("language_model", model.config)
    assert scores.partition(":")[0] == ("yes" if has_raw_scores(model) else "no")
    assert model.supports_gradient_checkpointing == (f"`{family}` has no gradient checkpointing" not in PAGE)


def test_the_refused_are_listed():
    listed = PAGE.partition("Refused, with what to do instead:")[2].partition("\n## ")[0]
    assert all(f"- `{kind}`" in listed for kind in REFUSED)
    assert all(f"- `{kind}`" in listed for kind, family in FAMILIES.items() if family.requires)


def test_every_field_of_an_entry_is_explained():
    needed = {"blocks", "queries", "keys", "values"}
    fields = {field.name for field in dataclasses.fields(Family)} - needed
    text = PAGE.partition("| field |")[2].partition("\n\n")[0]
    assert fields == {*table("field"), *(name for name in fields if f"`{name}` names" in text)}
    assert all(f"{name}=" in PAGE for name in needed)
