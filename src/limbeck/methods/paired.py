"""What terms over pairs of layers share: the pairs, what they need captured, and which tokens count."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.features import Features, Needs, Wanted
from limbeck.layers import Layers, layer_map
from limbeck.objective import Term
from limbeck.pair import Pair


class PairedLayers(Term):
    """A term over the hidden states of paired layers (student, teacher)."""

    def __init__(self, pair: Pair, layers: Layers, mask_padding: bool) -> None:
        super().__init__()
        self.pairs = layer_map(layers, pair.student.depth, pair.the_teacher.depth)
        self.mask_padding = mask_padding

    def needs(self) -> Needs:
        student, teacher = zip(*self.pairs, strict=True)
        return Needs(Wanted(hidden=student), Wanted(hidden=teacher))

    def counted(self, features: Features) -> Tensor:
        """The tokens that count: the real ones, or all of them."""
        return features.mask if self.mask_padding else torch.ones_like(features.mask)
