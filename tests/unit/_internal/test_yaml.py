"""YAML as limbeck reads it, beside what PyYAML makes of the same text."""

from __future__ import annotations

import pytest
import yaml
from helpers.paths import ROOT

from limbeck._internal.yaml import load, parse

SHIPPED = sorted((ROOT / "src" / "limbeck").glob("*/library/*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_recipes_and_studies_are_read_as_by_pyyaml(file):
    text = file.read_text(encoding="utf-8")
    assert load(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("{a: &x [1, 2], b: *x}", {"a": [1, 2], "b": [1, 2]}),
        ("a: {<<: {b: 1}, c: 2}", {"a": {"b": 1, "c": 2}}),
        ("2024-13-45", "2024-13-45"),
        ("2024-01-01", "2024-01-01"),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_values(text, value):
    assert load(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/name:os.system", "could not determine a constructor"),
        ("!!timestamp x", "could not determine a constructor"),
        ("!!binary x", "could not determine a constructor"),
        ("!!int x", "a value cannot be read"),
        ("9" * 5_000, "a value cannot be read"),
        ("&a [*a]", "nested more than 40 levels"),
        ("[" * 50, "nested more than 40 levels"),
        ("- " * 5_000 + "a", "nested more than 40 levels"),
        ("[&a [1, 1, 1, 1], &b [*a, *a], " + ", ".join(["*b"] * 20_000) + "]", "more than 100,000 values"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice"),
        ("a: [", "expected the node content"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(yaml.YAMLError, match=message):
        load(text)


def test_nodes_know_their_lines():
    values, node = parse("a: 1\nb:\n  c: 2\n")
    assert values == {"a": 1, "b": {"c": 2}}
    assert [key.start_mark.line for key, _ in node.value] == [0, 1]
