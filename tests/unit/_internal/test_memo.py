"""What is remembered in a process: computed once, and the least used of many forgotten."""

from __future__ import annotations

import pytest

from limbeck._internal.memo import Memo


def test_a_value_is_computed_once_while_it_is_among_the_last():
    computed = []

    def value(key):
        return memo.get(key, lambda: computed.append(key) or key.upper())

    memo = Memo(2)
    assert [value(key) for key in "aabab"] == list("AABAB") and computed == ["a", "b"]
    value("c")  # a was asked for before b
    assert [value(key) for key in "bca"] == list("BCA") and computed == ["a", "b", "c", "a"]
    memo.clear()
    assert value("a") == "A" and computed[-1] == "a" and len(computed) == 5


def test_what_fails_is_tried_again():
    memo = Memo(2)
    with pytest.raises(ZeroDivisionError):
        memo.get("a", lambda: 1 // 0)
    assert memo.get("a", lambda: 5) == 5
