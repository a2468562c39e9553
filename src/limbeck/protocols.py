"""Name what the path from recipe to run directory needs of models, tokenizers and data, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Tokenizer(Protocol):
    """Turn texts into token ids, as the tokenizers of transformers do."""

    model_max_length: int
    model_input_names: list[str]
    pad_token: str | None
    pad_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: list[int]

    def __call__(self, *texts: Sequence[str] | str, **options: Any) -> Mapping[str, Any]:
        """Encode texts, or pairs of them."""
        ...

    def __len__(self) -> int:
        """Count the vocabulary."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every token."""
        ...

    def decode(self, token_ids: Any, **options: Any) -> str:
        """Turn token ids back into a text."""
        ...

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """Name the tokens of these ids."""
        ...

    def save_pretrained(self, save_directory: str | Path) -> Any:
        """Write the tokenizer to a folder."""
        ...


class Model(Protocol):
    """Compute outputs from a batch, as the models of transformers do."""

    config: Any
    training: bool
    base_model: Any  # the model without its head
    base_model_prefix: str

    @property
    def device(self) -> torch.device:
        """Tell where the weights are."""
        ...

    def __call__(self, **inputs: Any) -> Any:
        """Run the model on padded token ids."""
        ...

    def eval(self) -> Any:
        """Switch dropout off."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on, or off."""
        ...

    def to(self, device: Any) -> Any:
        """Move the weights."""
        ...

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Choose whether the weights are trained."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Iterate over the weights."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Iterate over the weights with their names."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return weights and buffers by name."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Take over weights and buffers by name."""
        ...

    def save_pretrained(self, save_directory: str | Path) -> Any:
        """Write the model to a folder."""
        ...


class EncodedData(Protocol):
    """Hold rows of token ids, found by their place, or whole columns, found by their name."""

    def __len__(self) -> int:
        """Count the rows."""
        ...

    def __getitem__(self, key: Any) -> Any:
        """Return a row, or a column."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        ...
