"""Make a small vocabulary of one's own, for models that start from nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from limbeck._internal.files import replacing_folder

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def make_wordpiece(texts: Iterable[str], folder: Path, vocab_size: int = 4000) -> None:
    """Save a lower-case WordPiece tokenizer for BERT-like models: every character, and the most frequent words.

    Words are counted here instead of by a trainer of the tokenizers library, whose vocabulary differs from run to run.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = sorted({character for word in counts for character in word})
    pieces = [*_SPECIAL.values(), *characters, *(f"##{character}" for character in characters)]
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    chosen = [*pieces, *words[: max(0, vocab_size - len(pieces))]]
    vocabulary = {token: index for index, token in enumerate(chosen)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **_SPECIAL,
    )
    with replacing_folder(folder) as temporary:
        wrapped.save_pretrained(temporary)
