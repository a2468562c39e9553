"""Let one model compute as each of many students made of some of its blocks would, without copying a weight."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from limbeck.models.families import blocks_of, family_of, values_per_block
from limbeck.protocols import Model

_MOST_BYTES = 2**30  # of remembered outputs; beyond, blocks are computed again
Blocks = tuple[int, ...]


def can_keep(source: Model, layers: Sequence[int]) -> bool:
    """Tell whether these blocks have the weights that their new places need: ModernBERT's first block has its own."""
    blocks = blocks_of(source)
    return all(
        blocks[layer - 1].state_dict().keys() == blocks[place].state_dict().keys() for place, layer in enumerate(layers)
    )


class CutModel:
    """Hold a model that shares every weight with ``source`` and runs the blocks that :meth:`keep` names.

    What a block computes is remembered while the layers that follow begin with the same blocks, so that sets in
    sorted order compute a common beginning once. Only for models that are evaluated, and batches that come again.
    """

    def __init__(self, source: Model) -> None:
        weights = [*_module(source).parameters(), *_module(source).buffers()]
        self._model = copy.deepcopy(source, {id(weight): weight for weight in weights})
        self._blocks = list(blocks_of(self._model))
        self._computes = [block.forward for block in self._blocks]
        self._per_block = values_per_block(source.config)
        configs = [getattr(part, "config", None) for part in _module(self._model).modules()]
        self._configs: list[Any] = list({id(one): one for one in configs if one is not None}.values())
        self._batch = b""
        self._remembered: dict[tuple[bytes, Blocks], Any] = {}
        self._bytes = 0
        _module(self._model).register_forward_pre_hook(self._begin_batch, with_kwargs=True)

    def keep(self, layers: Blocks, following: Blocks = ()) -> Model:
        """Return the model with these blocks only; ``following`` are those that will be asked for next."""
        self._forget_all_but(layers)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(layers, following, strict=False))))
        kept = [self._blocks[layer - 1] for layer in layers]
        for place, (layer, block) in enumerate(zip(layers, kept, strict=True)):
            _move_to(block, place)
            compute: Any = self._remembering(self._computes[layer - 1], layers[: place + 1], place < shared)
            block.forward = compute
        parent, _, name = family_of(self._model).blocks.rpartition(".")
        setattr(self._model.base_model.get_submodule(parent), name, nn.ModuleList(kept))
        for config in self._configs:
            config.num_hidden_layers = len(layers)
            for name, values in self._per_block.items():
                setattr(config, name, [values[layer - 1] for layer in layers])
        return self._model

    def _remembering(self, compute: Callable[..., Any], blocks: Blocks, worth: bool) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            key = self._batch, blocks
            if key in self._remembered:
                return self._remembered[key]
            output = compute(*args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
            if worth and self._bytes + hidden.nbytes <= _MOST_BYTES:
                self._remembered[key] = output
                self._bytes += hidden.nbytes
            return output

        return run

    def _begin_batch(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Know the batch by all that the model reads of it."""
        digest = hashlib.blake2b(digest_size=16)
        for name, value in sorted(kwargs.items()):
            if isinstance(value, torch.Tensor):
                digest.update(f"{name}{tuple(value.shape)}".encode() + value.cpu().numpy().tobytes())
        self._batch = digest.digest()

    def _forget_all_but(self, layers: Blocks) -> None:
        kept = {key: output for key, output in self._remembered.items() if key[1] == layers[: len(key[1])]}
        self._remembered = kept
        self._bytes = sum((out[0] if isinstance(out, tuple) else out).nbytes for out in kept.values())


def _module(model: Any) -> nn.Module:
    module: nn.Module = model
    return module


def _move_to(block: nn.Module, place: int) -> None:
    """Let the parts of a block that know its place, counted from 0, know its new one."""
    for part in block.modules():
        old = getattr(part, "layer_idx", None)
        if old is None:
            continue
        if getattr(part, "scale_attn_by_inverse_layer_idx", False):  # GPT-2 can scale its scores by the place
            part.scaling *= (old + 1) / (place + 1)
        part.layer_idx = place  # type: ignore[assignment]
