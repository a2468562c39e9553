"""Follow searches that rest on each other: a grid after a grid, and settings that another method's search chose.

In a method's settings, and among the choices of its grid, ``{best: method.alpha, of: VKD}`` stands for the alpha with
which VKD scored best on the task. A grid may be a list of grids: each is searched around the best of those before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.errors import unknown
from limbeck.options import Mistake
from limbeck.recipes.files import get_value
from limbeck.study.description import GridPoint, Reference, SearchSpace, Study, reference_in

Settled = Mapping[str, GridPoint]  # by method: what was chosen for it


def waits_for(study: Study, task: str, label: str) -> list[str]:
    """List the methods whose searches come first, because this one takes settings from them."""
    return list(dict.fromkeys(reference.of for _, reference in _references(study, task, label)))


def settings_taken(study: Study, task: str, label: str, settled: Settled) -> GridPoint:
    """Return the settings of a method that others chose for it."""
    changes = study.changes(label).items()
    return {key: _found(study, task, there, settled) for key, value in changes if (there := reference_in(value))}


def resolve_space(study: Study, task: str, space: SearchSpace, settled: Settled) -> SearchSpace:
    """Put what others chose in its place among the choices, each of which is tried once."""
    found: SearchSpace = {}
    for key, choices in space.items():
        if not isinstance(choices, list):
            found[key] = choices
            continue
        known = [
            _found(study, task, there, settled) if (there := reference_in(choice)) else choice for choice in choices
        ]
        found[key] = [choice for number, choice in enumerate(known) if choice not in known[:number]]
    return found


def all_points(space: SearchSpace) -> list[GridPoint]:
    """Return every setting of a grid, in its order; the only one is empty where nothing is searched."""
    lists = {key: choices for key, choices in space.items() if isinstance(choices, list)}
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def first_point(study: Study, task: str, label: str) -> GridPoint:
    """Return settings as good as any to know what a method needs."""
    settled = {other: first_point(study, task, other) for other in waits_for(study, task, label)}
    point = settings_taken(study, task, label, settled)
    for space in reversed(study.steps(task, label)):  # the first step's choices count
        known = resolve_space(study, task, space, settled)
        point |= {key: value[0] if isinstance(value, list) else value["low"] for key, value in known.items()}
    return point


def possible_values(study: Study, task: str, label: str, key: str) -> list[Any]:
    """List the values that a setting may have, of lists and of what others may choose; none where it has none."""
    searched = [space[key] for space in study.steps(task, label) if isinstance(space.get(key), list)]
    written = [choice for choices in searched for choice in choices]
    if not written:
        value = get_value(study.values(task, label, {}, 0, "", "off"), key)
        written = [] if value is None else [value]
    found = []
    for value in written:
        there = reference_in(value)
        found += [value] if there is None else possible_values(study, task, there.of, there.best)
    return [value for number, value in enumerate(found) if value not in found[:number]]


def check_chain(study: Study, task: str, label: str) -> list[Mistake]:
    """Find references to methods and settings that are not there, and methods that wait for themselves."""
    mistakes = []
    for key, (best, other) in _references(study, task, label):
        where = ("methods", label, key)
        if other not in study.methods:
            mistakes.append(Mistake(where, unknown("method", other, study.methods)))
        elif other not in study.labels(task):
            mistakes.append(Mistake(where, f"takes what {other} chose, which does not run on {task}."))
        elif (circle := _circle(study, task, [label, other])) is not None:
            mistakes.append(Mistake(where, f"these wait for each other: {', '.join(circle)}."))
        elif not possible_values(study, task, other, best):
            mistakes.append(Mistake(where, f"{other} has no {best}: set it there, or search it."))
    return mistakes


def _references(study: Study, task: str, label: str) -> list[tuple[str, Reference]]:
    changes = list(study.changes(label).items())
    grids = [(key, choice) for space in study.steps(task, label) for key, choice in _choices(space)]
    return [(key, there) for key, value in [*changes, *grids] if (there := reference_in(value))]


def _choices(space: SearchSpace) -> list[tuple[str, Any]]:
    return [(key, choice) for key, choices in space.items() if isinstance(choices, list) for choice in choices]


def _found(study: Study, task: str, there: Reference, settled: Settled) -> Any:
    """Look up what another method has, be it chosen by a search or written in its recipe."""
    return get_value(study.values(task, there.of, settled[there.of], 0, "", "off"), there.best)


def _circle(study: Study, task: str, path: Sequence[str]) -> list[str] | None:
    if path[-1] in path[:-1]:
        return list(path[path.index(path[-1]) : -1])
    if path[-1] not in study.labels(task):
        return None  # which is a mistake of that method
    return next(
        (
            circle
            for other in waits_for(study, task, path[-1])
            if (circle := _circle(study, task, [*path, other])) is not None
        ),
        None,
    )
