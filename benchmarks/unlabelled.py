"""Show what rows without labels cost: memory as they grow from ten thousand to a million, and the time of a step.

    python benchmarks/unlabelled.py            # about 3 minutes on one core
    python benchmarks/unlabelled.py --quick    # two decades
    python benchmarks/unlabelled.py --check    # exit with status 1 if memory grows, or a step costs more

Each size runs in a process of its own: so many generated lines are read beside 1,000 labelled rows, and 500 steps of 32
rows are made into batches, half of them without a label. Shown are the highest resident memory, the seconds to read the
file, and the milliseconds to make a batch; "labelled only" is the same with all rows of a batch labelled.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from _table import conclude, parser
from rich.console import Console
from rich.table import Table

SIZES = (10_000, 100_000, 1_000_000)
LABELLED, STEPS, STEP = 1_000, 500, 32
BYTES_OF_A_ROW = 64  # by which memory may grow: the places of rows, their lengths and their order
SLOWER = 1.25  # a batch may take so many times that of labelled rows


def main() -> None:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--worker", nargs=2, help="(for its own processes)")
    options = reader.parse_args()
    if options.worker:
        print(json.dumps(measure(int(options.worker[0]), Path(options.worker[1]))))
        return
    sizes = (0, *(SIZES[:2] if options.quick else SIZES))
    rows = {size: in_own_process(size) for size in sizes}
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    few, many = sizes[1], sizes[-1]
    grown = (rows[many]["MB"] - rows[few]["MB"]) * 1e6 / (many - few)
    print(f"Memory grows by {grown:.0f} bytes with each row without a label.")
    missed = [f"memory: {grown:.0f} bytes of a row"] * (grown > BYTES_OF_A_ROW)
    slowest = max(rows[size]["batch_ms"] for size in sizes[1:]) / rows[0]["batch_ms"]
    missed += [f"a batch takes {slowest:.2f} times as long"] * (slowest > SLOWER)
    conclude(missed, options)


def in_own_process(size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--worker", str(size), folder]
        environment = dict(os.environ, LIMBECK_QUIET="1")
        done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{size:,}: {found}", file=sys.stderr)
    return found


def measure(size: int, folder: Path) -> dict[str, float]:
    """Read so many rows without a label, and make batches of them and of labelled ones."""
    from transformers import AutoTokenizer

    from limbeck import load_task
    from limbeck.models.vocabulary import make_wordpiece
    from limbeck.tasks.batching import LengthGroupedOrder, token_counts
    from limbeck.tasks.encode import Collator
    from limbeck.tasks.mixing import MixedRows, encode_unlabelled
    from limbeck.tasks.task import Encoding

    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 8))) for _ in range(2_000)]

    def text() -> str:
        return " ".join(draw.choices(words, k=draw.randint(6, 24)))

    with (folder / "train.csv").open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        file.writelines(f"{text()},{draw.choice('ab')}\n" for _ in range(LABELLED))
    with (folder / "more.txt").open("w", encoding="utf-8") as file:
        file.writelines(f"{text()}\n" for _ in range(size))
    make_wordpiece(words, folder / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    more = {"unlabelled": str(folder / "more.txt")} if size else {}
    task = load_task("table", train=str(folder / "train.csv"), text="text", label="label", **more)
    how = Encoding(tokenizer, 32)
    train = task.encode_all(("train",), how)["train"]
    begin = time.perf_counter()
    rows = MixedRows(train, encode_unlabelled(task, how, 10_000), 0.5) if size else train
    read = time.perf_counter() - begin
    lengths = token_counts(rows)
    order = rows.order(lengths, STEP, 0) if size else LengthGroupedOrder(lengths, STEP, 0)
    collate, drawn = Collator(tokenizer), _endless(order)
    first = [next(drawn) for _ in range(STEP)]  # what makes the order is not of a step
    collate(rows.__getitems__(first))
    begin = time.perf_counter()
    for _ in range(STEPS):
        collate(rows.__getitems__(list(islice(drawn, STEP))))
    seconds = time.perf_counter() - begin
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"MB": round(megabytes, 1), "read_s": round(read, 1), "batch_ms": round(1e3 * seconds / STEPS, 3)}


def _endless(order):  # type: ignore[no-untyped-def]
    epoch = 0
    while True:
        order.set_epoch(epoch)
        yield from order
        epoch += 1


def show(rows: dict[int, dict[str, float]]) -> None:
    table = Table(title="Rows without labels")
    for column in ("rows", "peak MB", "read, s", "a batch, ms"):
        table.add_column(column, justify="right")
    for size, found in rows.items():
        name = f"{size:,}" if size else "labelled only"
        table.add_row(name, f"{found['MB']:.0f}", f"{found['read_s']:.1f}", f"{found['batch_ms']:.2f}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    main()
