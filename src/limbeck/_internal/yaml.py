"""Read YAML: plain values of a bounded size, and one kind of error whatever is wrong with a text.

A recipe comes from anywhere. Tags make objects, and a few lines of anchors can stand for more values than any memory
holds; neither has a use in a recipe.
"""

from __future__ import annotations

from typing import Any

import yaml

_MOST_VALUES = 100_000  # with everything that anchors repeat
_DEEPEST = 40
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_TIME = "tag:yaml.org,2002:timestamp"


class _PlainLoader(yaml.SafeLoader):
    """Load plain values only: no tags of any kind, and dates are text."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Stop before there are thousands of levels, which take minutes to read."""
        if self.flow_level >= _DEEPEST:
            raise _too_deep(self.get_mark())
        super().fetch_flow_collection_start(token)


_PlainLoader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _PLAIN
}
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if tag != _TIME]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> Any:
    """Return the values in a text; whatever is wrong with it is a YAMLError."""
    return parse(text)[0]


def parse(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the values in a text, and the nodes that know their lines."""
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        if _count(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"with what its anchors repeat, it holds more than {_MOST_VALUES:,} values")
        return loader.construct_document(node), node
    except RecursionError as error:
        raise _too_deep(None) from error
    except ValueError as error:  # a number with thousands of digits, or a tag's word that is none
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _count(node: yaml.Node, known: dict[int, int], depth: int = 1) -> int:
    """Count the values that a node stands for, with everything that anchors repeat."""
    if depth > _DEEPEST:  # or it holds itself
        raise _too_deep(node.start_mark)
    if id(node) not in known:
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            inside = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        known[id(node)] = 1 + sum(_count(part, known, depth + 1) for part in inside)
    return known[id(node)]


def _too_deep(mark: yaml.Mark | None) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=f"it is nested more than {_DEEPEST} levels deep", problem_mark=mark)


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuse a key that is there twice: YAML takes the last, so the first would be lost without a word."""
    seen = set()
    for key, _ in node.value:
        if (key.tag, str(key.value)) in seen:
            raise yaml.MarkedYAMLError(problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark)
        seen.add((key.tag, str(key.value)))
