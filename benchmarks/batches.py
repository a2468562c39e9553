"""Measure what sharing a batch by length does to a loss that relates samples, and what mixing lengths costs in padding.

    python benchmarks/batches.py --data FOLDER --model MODEL            # RTE, MRPC and CoLA: 15 minutes on one core
    python benchmarks/batches.py --data FOLDER --model MODEL --quick    # CoLA alone
    python benchmarks/batches.py --data FOLDER --model MODEL --check    # exit with status 1 if a target is missed

FOLDER is a GLUE folder. The loss is unbiased CKA between two layers of MODEL, of means over tokens, in batches of 32,
as ``cka`` computes it between student and teacher. Compared are means over eight epochs: batches sorted by length,
drawn from buckets of neighbouring lengths, and as training draws them where a term relates samples (at random). The
cost is tokens with padding over tokens without it, which does not depend on the machine.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import torch
from _table import Row, finish, parser
from transformers import AutoModel

from limbeck import load_task
from limbeck.models.loading import load_tokenizer
from limbeck.similarity import cka
from limbeck.tasks.batching import LengthGroupedOrder

BATCH, EPOCHS, ROWS, MAX_LENGTH = 32, 8, 1600, 128
BIAS_LIMIT = 0.01  # how far the mean may be from that of other random batches, which differ by 0.002
BUCKETS = (1, 5, 10, 25)  # in batches
LAYERS = (3, -1)


def pooled(name: str, data: str, model: str) -> tuple[np.ndarray, list[torch.Tensor]]:
    """Return the length of each text, and the mean over its tokens in both layers."""
    task = load_task(name, data_dir=data)
    rows = task.split("train").select(range(min(ROWS, len(task.split("train")))))
    texts = [list(rows[column]) for column in task.text_columns]
    ids = load_tokenizer(model)(*texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    network = AutoModel.from_pretrained(model).float().eval()  # some are kept in half precision
    lengths = np.array([len(text) for text in ids])
    found = [torch.zeros(len(ids), network.config.hidden_size) for _ in LAYERS]
    with torch.inference_mode():
        # texts of one length need no padding, and so no mask
        for length in sorted(set(lengths)):
            for part in np.array_split(np.flatnonzero(lengths == length), -(-(lengths == length).sum() // BATCH)):
                batch = torch.tensor([ids[row] for row in part])
                hidden = network(input_ids=batch, output_hidden_states=True).hidden_states
                for into, layer in zip(found, LAYERS, strict=True):
                    into[part] = hidden[layer].mean(dim=1)
    return lengths, found


def by_length(lengths: np.ndarray, bucket: int, seed: int) -> torch.Tensor:
    """Order texts by length in pools of 50 batches, in which ``bucket`` batches side by side are mixed."""
    rng = np.random.default_rng(seed)
    found = []
    for pool in np.array_split(rng.permutation(len(lengths)), -(-len(lengths) // (50 * BATCH))):
        pool = pool[np.argsort(-lengths[pool], kind="stable")]
        parts = np.array_split(pool, max(1, round(len(pool) / (bucket * BATCH))))
        found += [part if bucket == 1 else rng.permutation(part) for part in parts]
    return torch.tensor(np.concatenate(found))


def at_random(lengths: np.ndarray, seed: int) -> torch.Tensor:
    """Order texts as training does for terms that relate samples: as if all had one length."""
    return torch.tensor(list(LengthGroupedOrder([1] * len(lengths), BATCH, seed)))


def measured(lengths: np.ndarray, features: list[torch.Tensor], orders: list[torch.Tensor]) -> tuple[float, float]:
    """Return the mean CKA of full batches, and how many tokens with padding there are for each without."""
    batches = [batch for order in orders for batch in order.split(BATCH) if len(batch) == BATCH]
    values = [float(cka(features[0][batch].double(), features[1][batch].double())) for batch in batches]
    padded, real = (sum(count(lengths[batch.numpy()]) for batch in batches) for count in (_padded, np.sum))
    return fmean(values), float(padded / real)


def _padded(lengths: np.ndarray) -> int:
    return int(lengths.max()) * len(lengths)


def compared(name: str, lengths: np.ndarray, features: list[torch.Tensor]) -> list[Row]:
    seeds = range(EPOCHS)
    plain = [torch.tensor(np.random.default_rng(seed).permutation(len(lengths))) for seed in seeds]
    value, _ = measured(lengths, features, plain)
    cases = {
        f"{name}, buckets of {bucket} batches" if bucket > 1 else f"{name}, sorted by length": [
            by_length(lengths, bucket, seed) for seed in seeds
        ]
        for bucket in BUCKETS
    }
    cases[f"{name}, as trained"] = [at_random(lengths, seed + 100) for seed in seeds]
    rows = []
    for case, orders in cases.items():
        found, cost = measured(lengths, features, orders)
        row = Row(
            case, "at random", note=f"CKA {found:.3f} ({found - value:+.3f}); {cost:.2f} tokens for each real one"
        )
        if case.endswith("as trained"):
            row.target, row.met = f"within {BIAS_LIMIT}", abs(found - value) <= BIAS_LIMIT
        rows.append(row)
    return rows


def main() -> None:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", required=True, help="a GLUE folder")
    reader.add_argument("--model", required=True, help="an encoder")
    options = reader.parse_args()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    names = ("glue/cola",) if options.quick else ("glue/rte", "glue/mrpc", "glue/cola")
    rows = [row for name in names for row in compared(name, *pooled(name, options.data, options.model))]
    finish("Who shares a batch", rows, options)


if __name__ == "__main__":
    main()
