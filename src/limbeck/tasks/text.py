"""Read plain text as a stream, for task-agnostic distillation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from limbeck.errors import DataError
from limbeck.options import Share
from limbeck.tasks.stream import Texts
from limbeck.tasks.task import Encoding, Task

if TYPE_CHECKING:
    from limbeck.tasks.packing import Blocks

_HELD_OUT = 0.01  # of the texts, kept for validation where no file is given for it
_BLOCK = 128  # tokens, unless task.max_length says otherwise


def text(*, train: str, validation: str | None = None, text: str | None = None, mask: Share = 0.15) -> Task:
    """Load plain text without labels, for task-agnostic distillation: masked or causal language modelling.

    Args:
        train: a file with one text a line, or a CSV, TSV, JSONL or Parquet file with a text column.
        validation: a file of the same kind; None keeps a hundredth of the training texts, by their content.
        text: the name of the text column; None for plain text.
        mask: the share of tokens that an encoder must predict; decoders predict each next token.
    """
    if validation is not None:
        splits = {"train": Texts(train, text), "validation": Texts(validation, text)}
    else:
        kept, held_out = Texts(train, text).split_off(_HELD_OUT)
        splits = {"train": kept, "validation": held_out}
    for name, texts in splits.items():
        if next(iter(texts), None) is None:
            hint = (
                " Equal texts are on one side: give task.validation, or add other texts." if validation is None else ""
            )
            raise DataError(f"{texts.path} has no text for the split '{name}'.{hint}")
    return TextTask("text", "language_model", ("text",), (), ("loss",), splits, mask)


@dataclass(frozen=True)
class TextTask(Task):
    """Stream its splits: they are read again and again, and never held. A model is scored by its loss on them."""

    mask: float

    def encode_all(self, names: Sequence[str], how: Encoding) -> dict[str, Any]:
        """Return a stream of blocks for each split; the lengths of all but the training data are counted."""
        splits = {name: self._blocks(name, how) for name in names}
        for name, blocks in splits.items():
            if name != "train" or how.count:
                blocks.count()
        return splits

    def _blocks(self, name: str, how: Encoding) -> Blocks:
        # imports torch, which listing the tasks must not wait for
        from limbeck.tasks.packing import Blocks, Packing

        packing = Packing(how.tokenizer, how.max_length, how.causal, self.mask)
        return Blocks(self.split(name), packing, how.seed, shuffle=name == "train")

    @property
    def scored_by_loss(self) -> bool:
        """Tell that a language model is scored by its loss."""
        return True

    def why_not_cached(self) -> str:
        """Say why the teacher must read every block anew."""
        return "The masks and blocks of plain text change with every epoch, and the teacher's features with them."

    def count_examples(self, split: str, encoded: Any) -> int:
        """Count the blocks."""
        return len(encoded)

    def sample(self, sizes: Mapping[str, int]) -> Task:
        """Return the task itself: a stream is read only as far as somebody asks."""
        return self

    def score(self, logits: Any, encoded: Any) -> dict[str, float]:
        """Return what was measured while the model read the blocks: it is a score already."""
        return dict(logits)

    def all_texts(self, split: str) -> Iterator[str]:
        """Yield the texts of a split as they are read."""
        yield from self.split(split)

    def answers(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return no columns: single tokens are nothing to compare."""
        return {}

    def suggest_length(self, tokenizer: Any, limit: int) -> tuple[int, str]:
        """Suggest the usual length of a block."""
        return min(_BLOCK, limit), "texts are packed into blocks of this length"
