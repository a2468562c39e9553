"""Make byte-level tokenizers of a few words, in the styles that families have."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from helpers.tiny_tables import WORDS

# the kind of byte-level tokenizer that a family has, where it has one
STYLES = {"roberta": "roberta", "xlm-roberta": "roberta", "gpt2": "gpt2", "qwen2": "gpt2", "qwen3": "gpt2"}
STYLES |= {"llama": "llama", "mistral": "llama"}
STYLES |= dict.fromkeys(("camembert", "xlm-roberta-xl", "mpnet"), "roberta")
STYLES |= dict.fromkeys(("gpt_neox", "smollm3"), "gpt2")
STYLES |= dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "llama")


def make_bpe(folder: Path, style: str) -> Path:
    """Save a byte-level tokenizer of ``WORDS`` with the special tokens of a style; only roberta's can pad."""
    special = {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "gpt2": ["<|endoftext|>"],
        "llama": ["<s>", "</s>"],
    }
    # a word after a blank becomes one token, a first word its letters
    merges = dict.fromkeys(("Ġ" + word[:end], word[end]) for word in WORDS for end in range(len(word)))
    pieces = [*special[style], "Ġ", *sorted(set("".join(WORDS))), *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if style == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
        named = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
        named |= dict(cls_token="<s>", sep_token="</s>")
    elif style == "gpt2":
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        named = dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    else:
        start = [("<s>", 0)]
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", start)
        named = dict(bos_token="<s>", eos_token="</s>")
    names = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **named).save_pretrained(folder)
    return folder
