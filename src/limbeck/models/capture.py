"""Run a model once and return its output and the features that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from limbeck.errors import ModelError
from limbeck.models.families import blocks_of, family_of, projected, projection
from limbeck.models.features import LAYERED, POOLED, Features, Wanted
from limbeck.models.pooling import Pooling, pool
from limbeck.protocols import Model

_Select = Callable[[Tensor], Tensor]


def model_inputs(model: Model, batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """Select what this model reads of a batch, which also has labels and may come from another family's tokenizer.

    Segment ids go only to models that have segment embeddings: GPT-2 would look them up among its words.
    """
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if "token_type_ids" in batch and (getattr(model.config, "type_vocab_size", 0) or 0) > 1:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if family_of(model).causal:
        if "position_ids" in batch:
            inputs["position_ids"] = batch["position_ids"]
        inputs["use_cache"] = False  # keys and values are kept for a next token that nobody asks for
    return inputs


def logits_of(output: Any) -> Tensor:
    """Return the logits of a model's output.

    (B, labels), or (B, L, labels) of a head that decides tokens; of question answering (B, L, 2): start and end.
    """
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    logits: Tensor = output.logits
    return logits


class Capture:
    """Capture hidden states and projections with hooks that live for one forward pass only.

    Hidden states equal those of ``output_hidden_states=True`` (the last one after the model's final norm) without
    keeping every layer alive; nothing depends on the attention implementation.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.family = family_of(model)
        self.blocks = blocks_of(model)

    def __call__(
        self, batch: Mapping[str, Tensor], wanted: Wanted, weights: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, Features]:
        """Run the model on the batch, with other ``weights`` by name in place of its own where they are given."""
        self._check_layers(wanted)
        mask = batch["attention_mask"].bool()
        store: dict[str, dict[int, Tensor]] = {kind: {} for kind in LAYERED}
        selects = {kind: self._select(kind, mask) for kind in LAYERED}
        # A layer that is computed again in the backward pass must compute the same then, when no hook is there.
        select_later = bool(getattr(self.model, "is_gradient_checkpointing", False))
        with ExitStack() as hooks:
            for kind in LAYERED:
                for layer in wanted.layers(kind):
                    select = _all if select_later else selects[kind]
                    hooks.enter_context(self._hook(kind, layer, store[kind], select))
            # without its head where no logits are wanted: a language model's head costs as much as several blocks
            runs: Any = self.model if wanted.logits or weights else self.model.base_model
            inputs = model_inputs(self.model, batch)
            output = functional_call(runs, dict(weights), (), inputs) if weights else runs(**inputs)
        if select_later:
            store = {kind: {at: selects[kind](out) for at, out in found.items()} for kind, found in store.items()}
        logits = logits_of(output) if wanted.logits else None
        found: Any = store
        return output, Features(mask, logits, **found)

    def _select(self, kind: str, mask: Tensor) -> _Select:
        """Return what makes the wanted kind of a module's output."""
        if kind in POOLED:
            return lambda hidden: pool(hidden, mask, cast(Pooling, kind))[0]
        if kind == "hidden":
            return _all
        return lambda out: projected(self.family, kind, out, self.model.config.num_attention_heads)

    def _hook(self, kind: str, layer: int, store: dict[int, Tensor], select: _Select) -> Any:
        if kind == "hidden" or kind in POOLED:
            return self._hook_hidden(layer, store, select)
        module = projection(self.family, kind, self.blocks[layer - 1])
        return module.register_forward_hook(_keep(store, layer, select))

    def _hook_hidden(self, layer: int, store: dict[int, Tensor], select: _Select) -> Any:
        if layer == len(self.blocks):
            return self.model.base_model.register_forward_hook(_keep(store, layer, select))

        def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if layer not in store:
                store[layer] = select(args[0] if args else kwargs["hidden_states"])

        # what the next block is given: DeBERTa may have a convolution between its first two
        return self.blocks[layer].register_forward_pre_hook(keep_input, with_kwargs=True)

    def _check_layers(self, wanted: Wanted) -> None:
        depth = len(self.blocks)
        outside = sorted(layer for layer in wanted.layers() if not 0 <= layer <= depth)
        if outside or 0 in wanted.layers("queries", "keys", "values"):
            raise ModelError(
                f"Layer {outside[0] if outside else 0} was asked of a {self.model.config.model_type} model with "
                f"{depth} blocks. Hidden states exist for layers 0 to {depth}, projections for 1 to {depth}."
            )


def _all(output: Tensor) -> Tensor:
    return output


def _keep(store: dict[int, Tensor], layer: int, select: _Select) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        # The first call is the block's own: DeBERTa projects its position embeddings through the same module.
        if layer not in store:
            store[layer] = select(output if isinstance(output, Tensor) else output[0])

    return hook
