"""Serve terms over pairs of layers: the pairs, what they need captured, and which tokens count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from limbeck import similarity
from limbeck.distillation.objective import Term
from limbeck.distillation.pair import Pair
from limbeck.errors import ModelError, RecipeError
from limbeck.models.features import POOLED, Features, Needs, Wanted
from limbeck.models.layers import Layers, layer_map
from limbeck.models.pooling import Pooling, pool, without_padding


class PairedLayers(Term):
    """Compare the hidden states of paired layers (student, teacher), or other ``kinds`` of features.

    Of hidden states, the teacher is asked for what :func:`rows_of` reads with this ``pool``.
    """

    def __init__(
        self,
        pair: Pair,
        layers: Layers,
        mask_padding: bool = True,
        kinds: Sequence[str] = ("hidden",),
        pool: Pooling = "tokens",
    ) -> None:
        super().__init__()
        self.pairs = layer_map(layers, pair.student.depth, pair.require_teacher().depth)
        self.mask_padding, self.kinds, self.pool = mask_padding, kinds, pool
        if not self.pairs:
            raise RecipeError(
                f"Layer strategy '{layers}' leaves out the last layer, and the student has only {pair.student.depth}. "
                "Choose another strategy, or give explicit pairs."
            )
        if "hidden" not in kinds and any(0 in layers for layers in self.pairs):
            raise RecipeError(
                f"Layer 0 is the embeddings, which have no {' or '.join(dict.fromkeys(kinds))}; seen: layers "
                f"{self.pairs}. Give pairs of blocks, counted from 1."
            )

    def needs(self) -> Needs:
        student, teacher = zip(*self.pairs, strict=True)
        hidden = "hidden" in self.kinds
        of_teacher = rows_needed(self.pool, teacher, self.mask_padding) if hidden else _wanted(self.kinds, teacher)
        return Needs(_wanted(self.kinds, student), of_teacher | Wanted(padding=not self.mask_padding))

    def counted(self, features: Features) -> Tensor:
        """Return the mask of the tokens that count: the real ones, or all of them."""
        return features.mask if self.mask_padding else torch.ones_like(features.mask)


def _wanted(kinds: Sequence[str], layers: Iterable[int]) -> Wanted:
    settings: dict[str, Any] = dict.fromkeys(kinds, layers)
    return Wanted(**settings)


def rows_needed(how: Pooling, layers: Iterable[int], mask_padding: bool = True) -> Wanted:
    """Name what :func:`rows_of` reads of a teacher: one vector per sample is pooled when captured, and cached so."""
    return _wanted((how if how in POOLED and mask_padding else "hidden",), layers)


def rows_of(features: Features, layer: int, mask: Tensor, how: Pooling) -> Tensor:
    """Return the rows that are compared: as they were captured, or pooled from the tokens."""
    captured = getattr(features, how, {})
    return captured[layer] if layer in captured else pool(features.hidden[layer], mask, how)[0]


def token_mse(s: Tensor, t: Tensor, mask: Tensor, project: nn.Module) -> Tensor:
    """Average (project(s) - t)² over the real tokens of the batch and over the dimensions."""
    if not isinstance(project, nn.Identity):  # NaN in padding would spoil the projector's gradient
        s = project(without_padding(s, mask))
    difference = similarity.masked_difference(s.float(), similarity.teacher_side(t).float(), mask[..., None])
    return similarity.squared_norm(difference).sum() / (mask.sum().clamp(min=1) * t.shape[-1])


def read_token(pair: Pair) -> Pooling:
    """Return the token that both classifiers read: the first of encoders, the last of decoders."""
    if pair.student.causal != pair.require_teacher().causal:
        raise ModelError(
            f"The classifiers of student ({pair.student.model_type}) and teacher ({pair.require_teacher().model_type}) "
            "read different tokens, the first and the last. Say which to compare: set method.pool to cls, last or mean."
        )
    return "last" if pair.student.causal else "cls"


def check_attention(method: str, pair: Pair) -> None:
    """Refuse models whose attention cannot be compared head by head: other heads, or scores that are not q·k."""
    student, teacher = pair.student, pair.require_teacher()
    if student.heads != teacher.heads:
        raise ModelError(
            f"{method} compares attention head by head, but the student has {student.heads} heads and the teacher "
            f"{teacher.heads}. Use minilmv2, which splits both into the same relation heads, or choose a student "
            f"with {teacher.heads} heads."
        )
    for shape in (student, teacher):
        if not shape.raw_scores:
            raise ModelError(
                f"{method} compares attention scores q·k/√d_head, but the attention of this {shape.model_type} model "
                "adds positions to them or scales them in its own way. Use minilmv2 or fcd, which do not need them."
            )
    if student.causal != teacher.causal:
        raise ModelError(
            f"{method} compares attention, but only one of student ({student.model_type}) and teacher "
            f"({teacher.model_type}) sees later tokens. Use minilmv2 or fcd, or two models of one kind."
        )


def check_same_blocks(method: str, pair: Pair) -> None:
    """Refuse models whose blocks cannot take each other's place."""
    student, teacher = pair.student, pair.require_teacher()
    if (student.model_type, student.width, student.heads) != (teacher.model_type, teacher.width, teacher.heads):
        raise ModelError(
            f"{method} works on blocks of both models, which must be of one family, width and number of heads; seen: "
            f"{student.model_type} ({student.width}, {student.heads} heads) and {teacher.model_type} ({teacher.width}, "
            f"{teacher.heads} heads). Build the student from the teacher's layers: student.from=teacher."
        )
