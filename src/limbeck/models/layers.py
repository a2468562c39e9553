"""Map layers: which student layer learns from which teacher layer, as pairs (student, teacher) counted from 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limbeck.errors import RecipeError, unknown

Pairs = list[tuple[int, int]]
Layers = str | list[tuple[int, int]]  # a strategy, or explicit pairs: how methods take it as an option


def _uniform(student: int, teacher: int) -> Pairs:
    return [(i, i * teacher // student) for i in range(1, student + 1)]


STRATEGIES: dict[str, Callable[[int, int], Pairs]] = {
    # every student layer, teacher layers evenly spread and ending at the top: 6 <- 12 gives 2, 4, ..., 12
    "uniform": _uniform,
    # every student layer, the teacher's last ones: 6 <- 12 gives 7, ..., 12
    "top": lambda student, teacher: [(i, teacher - student + i) for i in range(1, student + 1)],
    # every student layer, the teacher's first ones
    "bottom": lambda student, teacher: [(i, i) for i in range(1, student + 1)],
    # uniform without the last pair, which the logits already supervise (PKD): 6 <- 12 gives 2, 4, ..., 10
    "skip": lambda student, teacher: _uniform(student, teacher)[:-1],
    # one pair: the last layer of each
    "last": lambda student, teacher: [(student, teacher)],
    # one pair: the middle layer of each (for a single layer, that one)
    "middle": lambda student, teacher: [(max(1, student // 2), max(1, teacher // 2))],
}


def layer_map(strategy: str | Sequence[Sequence[int]], student_depth: int, teacher_depth: int) -> list[tuple[int, int]]:
    """Return pairs (student layer, teacher layer) of a named strategy, or the given pairs after checking their range.

    With depths that do not divide, ``uniform`` and ``skip`` take teacher layer ``floor(i * teacher / student)``,
    which is strictly increasing and ends at the teacher's last layer. Explicit pairs may use layer 0 (embeddings).
    """
    if student_depth < 1 or teacher_depth < 1:
        raise RecipeError(f"Depths must be at least 1; seen: student {student_depth}, teacher {teacher_depth}.")
    if not isinstance(strategy, str):
        return _explicit(strategy, student_depth, teacher_depth)
    if strategy not in STRATEGIES:
        known = f"Known: {', '.join(STRATEGIES)}, or explicit pairs such as [[3, 6], [6, 12]]."
        raise RecipeError(unknown("layer strategy", strategy, STRATEGIES, known))
    if student_depth > teacher_depth:
        raise RecipeError(
            f"The student has {student_depth} layers, the teacher {teacher_depth}: layer strategy '{strategy}' needs a "
            "student that is not deeper than its teacher. Choose a shallower student, or give explicit pairs."
        )
    return STRATEGIES[strategy](student_depth, teacher_depth)


def _explicit(pairs: Sequence[Sequence[int]], student_depth: int, teacher_depth: int) -> Pairs:
    checked = []
    for pair in pairs:
        if len(pair) != 2:
            raise RecipeError(f"A layer pair is [student layer, teacher layer]; seen: {list(pair)}.")
        student, teacher = pair
        if not 0 <= student <= student_depth or not 0 <= teacher <= teacher_depth:
            raise RecipeError(
                f"Layer pair ({student}, {teacher}) is out of range: the student has layers 0 to {student_depth}, "
                f"the teacher 0 to {teacher_depth} (0 is the embedding output)."
            )
        checked.append((student, teacher))
    if not checked:
        raise RecipeError("The list of layer pairs is empty: give at least one pair [student layer, teacher layer].")
    return checked
