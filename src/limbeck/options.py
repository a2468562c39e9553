"""Define the types of options, and read a function's keyword-only parameters as a schema.

The signature of a method or a task is its schema: recipes are checked against it, and listings print it.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import pydantic

from limbeck.errors import RecipeError, unknown

Location = tuple[str | int, ...]

# Types for options of methods and tasks; a value outside of them is refused when a recipe is read.
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Weight = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, pydantic.Field(ge=1)]
_NAMES_METHOD = "names a method"
MethodName = Annotated[str, _NAMES_METHOD]  # of another method, which may be code of the user's own
M = typing.TypeVar("M", bound=pydantic.BaseModel)


@dataclass(frozen=True)
class Mistake:
    """Hold one thing that is wrong in a recipe, and where."""

    where: Location
    message: str


class OpenBlock(pydantic.BaseModel):
    """Accept keys beyond the named ones: options, which are checked against the function that takes them."""

    model_config = pydantic.ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """Return the keys beyond the named ones."""
        return dict(self.model_extra or {})


def check(model: type[M], values: Any, where: Location = ()) -> tuple[M | None, list[Mistake]]:
    """Return the validated model, or every mistake in ``values``."""
    try:
        return model.model_validate(values), []
    except pydantic.ValidationError as error:
        return None, [_mistake(model, item, where) for item in error.errors()]


@cache
def schema_of(function: Callable[..., Any], name: str = "options") -> type[pydantic.BaseModel]:
    """Return a pydantic model of a function's keyword-only parameters: its options."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
    return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)


def check_options(
    block: str, given: Any, own: type[OpenBlock], find: Callable[[str], Callable[..., Any]]
) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the options of a task or method with their defaults filled in, and what is wrong with them."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return {}, []  # the block itself is wrong, which has been said
    try:
        function = find(given["name"])
    except RecipeError as error:
        return {}, [Mistake((block, "name"), str(error))]
    options = {key: value for key, value in given.items() if key not in own.model_fields}
    checked, mistakes = check(schema_of(function), options, (block,))
    return (checked.model_dump(exclude_none=True) if checked else {}), mistakes


def options_naming_methods(function: Callable[..., Any]) -> list[str]:
    """Return the options of a method that name another method."""
    return [name for name, field in schema_of(function).model_fields.items() if _NAMES_METHOD in field.metadata]


def describe_options(function: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """Return the name, type and default of each option, for a listing."""
    rows = []
    for name, field in schema_of(function).model_fields.items():
        rows.append((name, _type_name(field.annotation), "required" if field.is_required() else repr(field.default)))
    return rows


def _type_name(hint: Any) -> str:
    """Write ``Literal["a", "b"]`` as 'a' | 'b', ``Annotated[float, ...] | None`` as float | None."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        return _type_name(arguments[0])
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(repr, arguments))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(map(_type_name, arguments))
    return inspect.formatannotation(hint).replace("typing.", "").replace("NoneType", "None")


def _mistake(model: type[pydantic.BaseModel], item: Mapping[str, Any], where: Location) -> Mistake:
    location = tuple(item["loc"])
    if item["type"] == "extra_forbidden":
        message = unknown("key", str(location[-1]), _known_keys(model, location[:-1]))
    elif item["type"] == "missing":
        message = "is required and missing."
    else:
        message = f"{item['msg'].removeprefix('Value error, ')}"
        if item["type"] != "value_error":
            message += f"; seen: {item['input']!r}."
    return Mistake(where + location, message)


def _known_keys(model: Any, location: Location) -> list[str]:
    for part in location:
        field = model.model_fields.get(part) or next(
            (value for value in model.model_fields.values() if value.alias == part), None
        )
        candidates = [field.annotation, *typing.get_args(field.annotation)] if field else []
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, pydantic.BaseModel)), None)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]
