"""Check what shrink is asked for: budgets, and the plan that keeps what was asked and decided."""

from __future__ import annotations

import pytest

from limbeck.errors import RecipeError, RunError
from limbeck.shrink.budget import Budget
from limbeck.shrink.plan import Request, Workspace

# Budgets


@pytest.mark.parametrize(
    ("text", "ratio", "milliseconds"),
    [("0.5x", 0.5, None), (" 0.25 X ", 0.25, None), (".9x", 0.9, None), ("20ms", None, 20.0), ("7.5 ms", None, 7.5)],
)
def test_a_budget_is_a_share_or_milliseconds(text, ratio, milliseconds):
    assert Budget.parse(text) == Budget(ratio, milliseconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "'abc' is not understood"),
        ("", "'' is not understood"),
        ("0.5", "'0.5' is not understood"),
        ("-1x", "'-1x' is not understood"),
        ("nanms", "'nanms' is not understood"),
        ("20 s", "'20 s' is not understood"),
        ("0x", "'0x' leaves no time"),
        ("0.0ms", "'0.0ms' leaves no time"),
        ("2x", "'2x' is no less than the teacher's own latency. For a student that is 2 times as fast, write 0.5x"),
        ("1x", "'1x' is the teacher's own latency"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(text, message):
    with pytest.raises(RecipeError) as caught:
        Budget.parse(text)
    assert message in str(caught.value) and ("such as 0.5x" in str(caught.value) or "write 0.5x" in str(caught.value))


def test_a_share_has_some_tolerance_and_milliseconds_have_none():
    assert Budget.parse("0.5x").met(52.4, 100.0) and not Budget.parse("0.5x").met(52.6, 100.0)
    assert Budget.parse("20ms").met(20.0, 100.0) and not Budget.parse("20ms").met(20.01, 100.0)


# What was asked for


def request(folder, **changes):
    data = folder / "data.csv"
    if not data.exists():
        data.write_text("text,label\na,b\n")
    values = {"model": "m", "data": str(data), "text": ("text",), "label": "label", "budget": "0.5x"}
    return Request(**(values | changes))


def test_a_plan_is_found_again(tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {"epochs": 2.0})
    assert Workspace(tmp_path / "out", request(tmp_path)).plan["teacher"] == {"epochs": 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "0.3x"}, r"differs in: budget \('0.5x' there, '0.3x' now\)"),
        ({"seed": 1, "minutes": 5.0}, r"differs in: minutes \(10.0 there, 5.0 now\), seed \(0 there, 1 now\)"),
    ],
)
def test_a_folder_made_for_something_else_is_refused(changes, message, tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {})
    with pytest.raises(RunError, match=message):
        Workspace(tmp_path / "out", request(tmp_path, **changes))


def test_data_that_have_changed_are_noticed(tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {})
    (tmp_path / "data.csv").write_text("text,label\na,c\n")
    with pytest.raises(RunError, match="differs in: content of the files"):
        Workspace(tmp_path / "out", request(tmp_path))


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something else"):
        Workspace(tmp_path / "out", request(tmp_path))
