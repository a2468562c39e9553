"""Write tables of short texts that a tiny model can learn."""

from __future__ import annotations

from pathlib import Path

import torch

# fmt: off
WORDS = [
    "the", "a", "cat", "dog", "bird", "fish", "sees", "likes", "chases", "finds", "big",
    "small", "red", "quick", "today", "never", "often", "here", "there", "with", "and", "but",
    "not", "good", "bad", "fine", "poor", "happy", "sad", "old", "new", "bright", "dark",
]
# fmt: on


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draw short texts whose label follows from one word, so that a tiny model can learn them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        size = int(torch.randint(3, 12, (), generator=generator))
        words = [WORDS[int(i)] for i in torch.randint(0, len(WORDS), (size,), generator=generator)]
        label = "positive" if len({"good", "fine", "happy", "bright"} & set(words)) else "negative"
        rows.append((" ".join(words), label))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text(header + "\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return path
