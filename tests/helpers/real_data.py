"""Point to the real data and models in ../shared, and say which tests cannot run without them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2Tokenizer, RobertaTokenizer

from helpers.paths import SHARED

GLUE, SQUAD, WNUT, BANKING, CLINC = (
    SHARED / "data" / name for name in ("glue", "squad", "wnut17", "banking77", "clinc150")
)
ENCODER = SHARED / "models" / "gte-small"
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="real GLUE data are not at ../shared/data/glue")
needs_encoder = pytest.mark.skipif(not ENCODER.is_dir(), reason="the real encoder is not at ../shared/models/gte-small")


def real_tokenizer(name: str) -> Any:
    """Load gte-small's word pieces, or the byte-level vocabulary of roberta or gpt2."""
    folder = {
        "gte-small": ENCODER,
        "roberta": SHARED / "tokenizers" / "roberta-base",
        "gpt2": SHARED / "tokenizers" / "gpt2",
    }[name]
    if not folder.is_dir():
        pytest.skip(f"real vocabularies are not at ../shared/{folder.relative_to(SHARED)}")
    if name == "gte-small":
        return AutoTokenizer.from_pretrained(folder)
    if name == "roberta":
        return RobertaTokenizer.from_pretrained(folder)
    return GPT2Tokenizer.from_pretrained(folder, pad_token="<|endoftext|>")
