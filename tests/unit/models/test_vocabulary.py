from __future__ import annotations

import os
import subprocess
import sys

from transformers import AutoTokenizer

from limbeck.models.vocabulary import make_wordpiece

TEXTS = ["The cat sat.", "The dog sat, the cat ran!", "A naïve dog"]


def test_frequent_words_whole_rare_words_in_pieces(tmp_path):
    make_wordpiece(TEXTS, tmp_path / "words", vocab_size=41)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "words")
    assert tokenizer.tokenize("The CAT sat") == ["the", "cat", "sat"]
    assert tokenizer.tokenize("ran") == ["r", "##a", "##n"]
    assert tokenizer.tokenize("naïve") == tokenizer.tokenize("naive")
    assert tokenizer.tokenize("über") == ["[UNK]"]  # a character that was never seen
    pair = tokenizer("the cat", "a dog")
    assert pair["token_type_ids"] == [0] * 4 + [1] * (len(pair["input_ids"]) - 4)
    assert tokenizer.pad_token_id == 0 and len(tokenizer) == 41


def test_the_same_texts_give_the_same_tokenizer_in_every_process(tmp_path):
    script = "import sys; from pathlib import Path; from limbeck.models.vocabulary import make_wordpiece\n"
    script += f"make_wordpiece({TEXTS!r}, Path(sys.argv[1]))"
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, tmp_path / seed], check=True, env=env)
    first, second = ((tmp_path / seed / "tokenizer.json").read_bytes() for seed in ("1", "2"))
    assert first == second
