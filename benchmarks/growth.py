"""Show how time and memory grow with the rows of a table, the runs of a study, and the processes that share its jobs.

    python benchmarks/growth.py             # to a million rows and ten thousand runs: about 15 minutes on 2 cores
    python benchmarks/growth.py --quick     # two decades of each
    python benchmarks/growth.py --check     # exit with status 1 if something grows faster than it may

Each size runs in a process of its own. MB is the most memory of its own that it ever had; "mapped MB" is what it had of
files at the end, such as the cache's, which the system takes back when it needs room. The exponent e of a column is
that of ``time ~ size^e``, fitted to the sizes at which it takes a tenth of a second or more. Rows: texts of 4 to 12
generated words are written, read as a table, tokenised, run through a small teacher into a cache, and the cache is
read in batches. Runs: copies of one finished run of a study with as many seeds; the study is started again, which finds
everything done, then compared, then reported. Processes: jobs that sleep are divided among workers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _table import conclude, parser, status_mb
from rich.console import Console
from rich.table import Table

from limbeck.study.engines import Workers
from limbeck.study.jobs import Job

ROWS = (1_000, 10_000, 100_000, 1_000_000)
RUNS = (10, 100, 1_000, 10_000)
PROCESSES = (1, 2, 4, 8)
LINEAR = 1.1  # the exponent up to which growth is called linear
MOST_MB = 2_000  # for a million rows
SHORT = 0.1  # seconds: what takes less says nothing about growth
NAPS, NAP = 48, 0.25  # jobs for the processes, and the seconds that each sleeps


def main() -> None:
    options = _options()
    if options.worker:
        kind, size, folder = options.worker
        begin = {"rows": of_rows, "runs": of_runs, "processes": of_processes}[kind]
        with own_memory() as highest:
            found = begin(int(size), Path(folder))
        found |= {"MB": highest(), "mapped MB": status_mb("RssFile")}
        print(json.dumps(found))
        return
    curves = []
    for kind, sizes in (("rows", ROWS), ("runs", RUNS), ("processes", PROCESSES)):
        if not options.only or kind in options.only:
            curves.append(measure(kind, sizes[:2] if options.quick else sizes))
    finish(curves, options)


def _options() -> Namespace:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--only", nargs="+", choices=["rows", "runs", "processes"])
    reader.add_argument("--worker", nargs=3, help="(for its own processes)")
    return reader.parse_args()


@dataclass
class Curve:
    """Hold what each size took, by column, and the exponents of those that can be told."""

    kind: str
    points: dict[int, dict[str, float]]

    def exponent(self, column: str) -> float | None:
        """Fit ``time ~ size^e``; None where fewer than two sizes take long enough."""
        long = [(size, point[column]) for size, point in self.points.items() if point[column] >= SHORT]
        if column.endswith("MB") or len(long) < 2:
            return None
        sizes, seconds = np.log(np.array(long)).T
        return float(np.polyfit(sizes, seconds, 1)[0])

    def broken(self) -> list[str]:
        """Say what grows faster than it may."""
        found = [f"{self.kind}: {name} grows as size^{e:.2f}" for name, e in self.exponents().items() if e > LINEAR]
        most = self.points.get(ROWS[-1], {}).get("MB", 0.0) if self.kind == "rows" else 0.0
        return found + [f"rows: {most:,.0f} MB"] * (most > MOST_MB)

    def exponents(self) -> dict[str, float]:
        columns = next(iter(self.points.values()))
        return {name: e for name in columns if (e := self.exponent(name)) is not None}


def measure(kind: str, sizes: tuple[int, ...]) -> Curve:
    points = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--worker", kind, str(size), folder]
            environment = dict(os.environ, LIMBECK_QUIET="1", TOKENIZERS_PARALLELISM="true")
            done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        points[size] = json.loads(done.stdout.splitlines()[-1])
        print(f"{size:,} {kind}: {points[size]}", file=sys.stderr)
    return Curve(kind, points)


@contextmanager
def own_memory() -> Iterator[Callable[[], float]]:
    """Watch the memory of this process that is no file's, a hundred times a second; yield what returns the most."""
    seen, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen[0] = max(seen[0], status_mb("RssAnon") + status_mb("RssShmem"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: seen[0]
    finally:
        done.set()
        thread.join()


class Clock:
    """Collect how long the steps of a job take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        self.seconds[name] = time.perf_counter() - begin
        return result


def of_rows(rows: int, folder: Path) -> dict[str, float]:
    """Read, tokenise and cache a table of so many short texts."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from limbeck import CachedTeacher, FeatureCache, LiveTeacher, Wanted, load_task
    from limbeck.distillation.fingerprint import fingerprint
    from limbeck.models.vocabulary import make_wordpiece
    from limbeck.tasks.batching import Batches
    from limbeck.tasks.encode import Collator, encode

    draw, clock = random.Random(0), Clock()
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 8))) for _ in range(2_000)]
    for file, count in (("train.csv", rows), ("validation.csv", 1_000)):
        with (folder / file).open("w", encoding="utf-8") as opened:
            opened.write("text,label\n")
            for _ in range(count):
                opened.write(" ".join(draw.choices(words, k=draw.randint(4, 12))) + f",{draw.choice('ab')}\n")
    make_wordpiece(words, folder / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    files = {name: str(folder / f"{name}.csv") for name in ("train", "validation")}
    task = clock.time("read", lambda: load_task("table", text="text", label="label", **files))
    encoded = clock.time("tokenise", lambda: encode(task.text_columns, task.split("train"), tokenizer, 32))
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    teacher = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **size)).eval()
    wanted, collate = Wanted(logits=True, hidden=[1]), Collator(tokenizer)
    cache = FeatureCache(folder / "cache", encoded, fingerprint(teacher, tokenizer, encoded, 32))
    clock.time("write the cache", lambda: cache.fill(LiveTeacher(teacher), collate, 256, wanted))
    cached, batches = CachedTeacher(cache), Batches(encoded, collate, 256)

    def read() -> None:
        for batch in batches:
            cached(batch, wanted)

    clock.time("read the cache", read)
    return clock.seconds


def of_runs(runs: int, folder: Path) -> dict[str, float]:
    """Start, compare and report a study of so many runs, all of them finished."""
    import yaml

    from limbeck.compare.comparison import compare_paths
    from limbeck.report.page import write_report
    from limbeck.study.engines import InProcess
    from limbeck.study.loading import load_study
    from limbeck.study.plan import Plan
    from limbeck.study.runner import run_study

    clock, study, output = Clock(), folder / "study.yaml", folder / "out"
    values: dict[str, Any] = {
        "tasks": ["reviews"],
        "task": {"size": 60, "max_length": 16},
        "teacher": {"fine_tuned": str(_teacher(folder)), "confirmed": True},
        "student": {"config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1}},
        "methods": {"ft": {}, "ft slow": {"method": {"name": "ft"}, "train": {"learning_rate": 1e-6}}},
        "seeds": [0],
        "baselines": ["ft"],
        "rivals": False,
        "train": {"max_steps": 1, "batch_size": 8},
    }
    values["student"]["config"] |= {"num_attention_heads": 2, "intermediate_size": 16}
    study.write_text(yaml.safe_dump(values))
    run_study(load_study(study), output, InProcess())
    study.write_text(yaml.safe_dump(values | {"seeds": list(range(runs // 2))}))
    plan = Plan(load_study(study), output)
    for label in values["methods"]:
        first, *others = (
            plan.train_job("reviews", label, {}, seed, "needed").directory.path for seed in range(runs // 2)
        )
        recipe, metrics = (
            yaml.safe_load((first / "recipe.yaml").read_text()),
            json.loads((first / "metrics.json").read_text()),
        )
        for seed, copy in enumerate(others, start=1):
            shutil.copytree(first, copy)
            (copy / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"seed": seed}))
            (copy / "metrics.json").write_text(json.dumps(metrics | {"seed": seed}))
    clock.time("start again", lambda: run_study(load_study(study), output, Untouched()))
    clock.time("compare", lambda: compare_paths([output]))
    clock.time("report", lambda: write_report([output], folder / "report.html"))
    return clock.seconds


class Untouched:
    """Be an engine that must have nothing to do."""

    on_start: Callable[[Any], None]

    def submit(self, job: Any) -> None:
        raise AssertionError(f"{job.title} was not found done")

    def next_outcome(self) -> Any:
        raise AssertionError

    def close(self) -> None:
        pass


def _teacher(folder: Path) -> Path:
    """Save a tiny model with the labels of the reviews; nobody asks what it answers."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from limbeck import load_task
    from limbeck.models.heads import label_config
    from limbeck.models.vocabulary import make_wordpiece

    task = load_task("reviews", size=60)
    make_wordpiece(task.split("train")["review"], folder / "teacher")
    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **size, **label_config(task))).save_pretrained(
        folder / "teacher"
    )
    return folder / "teacher"


@dataclass(frozen=True)
class Nap(Job):
    """Sleep."""

    def finished(self) -> bool:
        return False

    def run(self) -> None:
        time.sleep(NAP)


def sleep(job: Job) -> None:
    job.run()


def of_processes(count: int, folder: Path) -> dict[str, float]:
    """Divide jobs that sleep among so many workers; the time is that of all, times the workers, so level is perfect."""
    engine = Workers(count, threads=1, work=sleep)
    for number in range(count):  # processes start with their first job
        engine.submit(Nap(f"first-{number}", "", str(folder)))
    for _ in range(count):
        engine.next_outcome()
    begin = time.perf_counter()
    for number in range(NAPS):
        engine.submit(Nap(str(number), "", str(folder)))
    for _ in range(NAPS):
        engine.next_outcome()
    took = time.perf_counter() - begin
    engine.close()
    return {"workers x seconds": took * count}


def finish(curves: list[Curve], options: Namespace) -> None:
    """Print a table for each curve, write the file, and exit as ``--check`` asks."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    for curve in curves:
        columns = list(next(iter(curve.points.values())))
        table = Table(curve.kind, *columns, title=f"Growth with {curve.kind}: seconds, and the highest memory")
        for size, point in curve.points.items():
            cells = (f"{point[name]:,.0f}" if name.endswith("MB") else f"{point[name]:.2f}" for name in columns)
            table.add_row(f"{size:,}", *cells)
        exponents = curve.exponents()
        table.add_row("exponent", *(f"{exponents[name]:.2f}" if name in exponents else "" for name in columns))
        console.print(table)
    if options.json:
        options.json.write_text(json.dumps([{"kind": c.kind, "points": c.points} for c in curves], indent=1) + "\n")
    broken = [words for curve in curves for words in curve.broken()]
    conclude(broken, options)


if __name__ == "__main__":
    main()
