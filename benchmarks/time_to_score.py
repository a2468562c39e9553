"""Show how long it takes until a student is as good as another toolkit's: score against wall time, for each of them.

    python benchmarks/time_to_score.py --data FOLDER --model MODEL              # hours on 2 quiet cores
    python benchmarks/time_to_score.py --data FOLDER --model MODEL --only banking77 --layers 6 --seeds 1
    python benchmarks/time_to_score.py --data FOLDER --model MODEL --quick      # few rows: does it run?
    python benchmarks/time_to_score.py --data FOLDER --model MODEL --check      # exit with status 1 on a missed target

FOLDER holds banking77/ and glue/SST-2/, of which the first 10,000 rows train. ``--peers`` names the Python of an
environment with the group ``peers`` (default: this one); a toolkit that is not there is left out and named.

All sides learn from the same fine-tuned teacher (``--model`` with a fitted head, two epochs), by the loss of its
logits, and make a student of 6 and of 3 layers from the same pre-trained model as their own documentation does:

- textbrewer: the first layers of the pre-trained model, logits at a temperature of 8 and hidden states, as examples do;
- torchdistill: the first layers, settings of its sample for SST-2;
- plain: the first layers, a loop over transformers with KD;
- limbeck: ``student.keep: best:6`` of the teacher, method ``kd``, all else as it is by default.

All pad to the longest text of a batch (textbrewer's own examples pad to 128, which takes several times as long), and
train for three epochs. Each side is a process of its own; the sides follow each other, in another order for each seed.
The time of a score is that since the process began, loading included, without what scoring it took. The table's ratio
is between the times at which the other toolkit reached the best score that it ever had, and limbeck at least this one.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _table import conclude, parser
from rich.console import Console
from rich.table import Table

PEERS = ("textbrewer", "torchdistill", "plain")
EPOCHS, BATCH, LONGEST, PER_EPOCH = 3, 32, 128, 4  # a score each quarter of an epoch
QUICK_ROWS = 400
FASTER = 10.0
BEGAN = "LIMBECK_BENCHMARK_BEGAN"


def main() -> None:
    options = _options()
    if options.worker:
        side, folder, depth, seed = options.worker
        points = WORKERS[side](Job(Path(folder), options.model, int(depth), int(seed)))
        print(json.dumps(points))
        return
    known = {name: _missing(name, options) for name in PEERS}
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory() as name:
        for data in options.only:
            folder = (options.keep or Path(name)) / data
            prepare(data, folder, options)
            for depth in options.layers:
                for seed in range(options.seeds):
                    sides = ["limbeck", *(peer for peer in PEERS if not known[peer])]
                    sides = sides[seed % len(sides) :] + sides[: seed % len(sides)]
                    curves += [run(side, data, folder, depth, seed, options) for side in sides]
    for name, why in known.items():
        if why:
            print(f"{name} was left out: {why}", file=sys.stderr)
    finish(curves, options)


def _options() -> Namespace:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", type=Path, help="the folder with the data sets")
    reader.add_argument("--model", help="a pre-trained 12-layer encoder")
    reader.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="of the peers' environment")
    reader.add_argument("--only", nargs="+", choices=["banking77", "sst2"], default=["banking77", "sst2"])
    reader.add_argument("--layers", nargs="+", type=int, default=[6, 3])
    reader.add_argument("--seeds", type=int, default=3)
    reader.add_argument(
        "--keep", type=Path, help="keep data, teachers and curves here; what is there is not made again"
    )
    reader.add_argument("--worker", nargs=4, help="(for its own processes)")
    options = reader.parse_args()
    if options.quick:
        options.seeds, options.layers = 1, [3]
    if options.model is None or (options.data is None and not options.worker):
        reader.error("give --data and --model.")
    return options


def _missing(peer: str, options: Namespace) -> str:
    if peer == "plain":
        return ""
    found = subprocess.run([options.peers, "-c", f"import importlib.util as u; print(u.find_spec('{peer}'))"],
                           capture_output=True, text=True)  # fmt: skip
    return "" if found.stdout.strip() not in ("", "None") else f"it is not installed for {options.peers}"


def prepare(data: str, folder: Path, options: Namespace) -> None:
    """Write the rows as tables, and fine-tune the teacher that all sides have."""
    from quality import DATA  # which imports limbeck, and with it torch

    from limbeck import execute, load_recipe

    folder.mkdir(parents=True, exist_ok=True)
    train, test = DATA[data](options.data)
    if options.quick:
        train, test = train[:: -(-len(train) // QUICK_ROWS)], test[:: -(-len(test) // QUICK_ROWS)]
        test = [row for row in test if row[1] in {label for _, label in train}]
    for file, rows in (("train.csv", train), ("test.csv", test)):
        with (folder / file).open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([("text", "label"), *rows])
    values = {
        "task": _task(folder),
        "student": {"model": str(options.model), "head": "fitted"},
        "method": {"name": "ft"},
        "train": {"epochs": 2, "learning_rate": 1e-4, "eval_strategy": "no", "save_strategy": "no"},
        "seed": 0,
    }
    execute(load_recipe(values=values), folder / "teacher", resume=True)


def _task(folder: Path) -> dict[str, Any]:
    train, test = (str(folder / f"{name}.csv") for name in ("train", "test"))
    return {"name": "table", "train": train, "validation": test, "text": "text", "label": "label"}


@dataclass(frozen=True)
class Job:
    """Say what a worker does."""

    folder: Path
    model: str  # pre-trained
    depth: int
    seed: int

    @property
    def teacher(self) -> Path:
        return self.folder / "teacher" / "student"

    def rows(self, name: str, labels: dict[str, int]) -> list[tuple[str, int]]:
        with (self.folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            return [(row["text"], labels[row["label"]]) for row in csv.DictReader(file)]


class Clock:
    """Tell the seconds since the process was asked for, without those of scoring."""

    def __init__(self) -> None:
        self._away = 0.0
        self.points: list[tuple[float, float]] = []

    def now(self) -> float:
        return time.time() - float(os.environ[BEGAN]) - self._away

    @contextmanager
    def stopped(self) -> Iterator[None]:
        begin = time.time()
        yield
        self._away += time.time() - begin

    def note(self, score: float) -> None:
        self.points.append((self.now(), score))


@dataclass
class Curve:
    """Hold the scores of one side over time."""

    data: str
    depth: int
    seed: int
    side: str
    points: list[tuple[float, float]]

    @property
    def best(self) -> float:
        return max(score for _, score in self.points)

    def time_to(self, score: float) -> float | None:
        """Return when it first scored so much; None where it never did."""
        return next((seconds for seconds, own in self.points if own >= score), None)


def run(side: str, data: str, folder: Path, depth: int, seed: int, options: Namespace) -> Curve:
    """Let a process train, and read the scores that it had."""
    kept = folder / f"{side}-{depth}-{seed}.json"
    if not kept.is_file():
        python = options.peers if side in ("textbrewer", "torchdistill") else sys.executable
        words = [python, __file__, "--model", options.model, "--worker", side, str(folder), str(depth), str(seed)]
        environment = dict(os.environ, LIMBECK_QUIET="1")
        if options.threads:
            environment["OMP_NUM_THREADS"] = str(options.threads)
        environment[BEGAN] = str(time.time())
        done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        kept.write_text(done.stdout.splitlines()[-1] + "\n")
    curve = Curve(data, depth, seed, side, [tuple(point) for point in json.loads(kept.read_text())])
    print(f"{data}, {depth} layers, seed {seed}, {side}: best {100 * curve.best:.2f}, "
          f"{curve.points[-1][0]:.0f} s in all", file=sys.stderr)  # fmt: skip
    return curve


def train_limbeck(job: Job) -> list[tuple[float, float]]:
    """Distil by the defaults; the head's score counts, too, with the time that measuring it takes."""
    clock = Clock()
    from limbeck._internal.tuning import bound_spinning, keep_freed_memory, use_threads

    keep_freed_memory()
    bound_spinning()
    use_threads(None)
    from limbeck import execute, load_recipe
    from limbeck.training import session

    score, start = session.TrainingSession._score, session.start_head

    def scored(self: Any, trainer: Any) -> dict[str, float]:
        with clock.stopped():
            found = score(self, trainer)
        clock.note(found["accuracy"])
        return found

    def started(*given: Any) -> Any:
        found = start(*given)
        clock.note(found.record["score"])
        return found

    session.TrainingSession._score, session.start_head = scored, started  # type: ignore[method-assign]
    steps = -(-sum(1 for _ in (job.folder / "train.csv").open(encoding="utf-8")) // BATCH)
    values = {
        "task": _task(job.folder),
        "teacher": {"model": str(job.teacher), "confirmed": True},
        "student": {"from": "teacher", "keep": f"best:{job.depth}"},
        "method": {"name": "kd"},
        "train": {"eval_strategy": "steps", "eval_steps": max(1, steps // PER_EPOCH), "save_strategy": "no"},
        "seed": job.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        execute(load_recipe(values=values), Path(folder) / "run")
    return clock.points


class Peer:
    """Load what a plain program of transformers loads: models, and batches of tokens padded to the longest text."""

    def __init__(self, job: Job) -> None:
        self.clock = Clock()
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

        torch.manual_seed(job.seed)
        tokenizer = AutoTokenizer.from_pretrained(job.model)
        self.teacher = AutoModelForSequenceClassification.from_pretrained(job.teacher).eval()
        config = self.teacher.config
        self.student = AutoModelForSequenceClassification.from_pretrained(
            job.model, num_hidden_layers=job.depth, num_labels=config.num_labels,
            id2label=config.id2label, label2id=config.label2id,
        )  # fmt: skip
        collate = DataCollatorWithPadding(tokenizer)

        def batches(name: str, size: int, shuffle: bool) -> Any:
            rows = [
                dict(tokenizer(text, truncation=True, max_length=LONGEST)) | {"labels": label}
                for text, label in job.rows(name, config.label2id)
            ]
            if not shuffle:
                rows.sort(key=lambda row: len(row["input_ids"]))
            return torch.utils.data.DataLoader(
                rows, batch_size=size, shuffle=shuffle, collate_fn=lambda b: dict(collate(b))
            )

        self.batches = batches("train", BATCH, True)
        with self.clock.stopped():
            self._test = batches("test", 2 * BATCH, False)

    @property
    def steps(self) -> int:
        return EPOCHS * len(self.batches)

    @property
    def every(self) -> int:
        return max(1, len(self.batches) // PER_EPOCH)

    def score(self) -> None:
        """Note the student's accuracy on the test file."""
        import torch

        with self.clock.stopped(), torch.inference_mode():
            self.student.eval()
            right = rows = 0
            for batch in self._test:
                labels = batch.pop("labels")
                right += int((self.student(**batch).logits.argmax(-1) == labels).sum())
                rows += len(labels)
            self.student.train()
        self.clock.note(right / rows)


def train_plain(job: Job) -> list[tuple[float, float]]:
    """Distil in a loop: half the labels' cross entropy, half the KL of the logits at 5, AdamW at 5e-5, linear decay."""
    import torch
    from torch.nn import functional as F
    from transformers import get_linear_schedule_with_warmup

    peer = Peer(job)
    optimizer = torch.optim.AdamW(peer.student.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, peer.steps)
    peer.student.train()
    step, temperature = 0, 5.0
    for _ in range(EPOCHS):
        for batch in peer.batches:
            output = peer.student(**batch)
            with torch.no_grad():
                theirs = peer.teacher(**batch).logits
            soft = F.kl_div((output.logits / temperature).log_softmax(-1), (theirs / temperature).softmax(-1),
                            reduction="batchmean") * temperature**2  # fmt: skip
            (0.5 * output.loss + 0.5 * soft).backward()
            torch.nn.utils.clip_grad_norm_(peer.student.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % peer.every == 0 or step == peer.steps:
                peer.score()
    return peer.clock.points


def train_textbrewer(job: Job) -> list[tuple[float, float]]:
    """Distil as its examples do: soft cross entropy at 8, hidden states of evenly spaced layers, 1e-4, warm-up 0.1."""
    from peers import let_torchvision_import

    let_torchvision_import()
    import torch
    from textbrewer import DistillationConfig, GeneralDistiller, TrainingConfig
    from transformers import get_linear_schedule_with_warmup

    peer = Peer(job)

    def adapt(batch: dict[str, Any], output: Any) -> dict[str, Any]:
        return {"logits": output.logits, "hidden": output.hidden_states, "inputs_mask": batch["attention_mask"]}

    stride = peer.teacher.config.num_hidden_layers // job.depth
    matches = [
        {"layer_T": stride * layer, "layer_S": layer, "feature": "hidden", "loss": "hidden_mse", "weight": 1}
        for layer in range(job.depth + 1)
    ]
    optimizer = torch.optim.AdamW(peer.student.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        distiller = GeneralDistiller(
            TrainingConfig(device="cpu", output_dir=folder, ckpt_frequency=PER_EPOCH),
            DistillationConfig(temperature=8, intermediate_matches=matches),
            peer.teacher, peer.student, adapt, adapt,
        )  # fmt: skip
        with distiller:
            distiller.train(
                optimizer, peer.batches, EPOCHS, max_grad_norm=1.0, output_hidden_states=True,
                scheduler_class=get_linear_schedule_with_warmup,
                scheduler_args={"num_warmup_steps": int(0.1 * peer.steps), "num_training_steps": peer.steps},
                callback=lambda model, step: peer.score(),
            )  # fmt: skip
    return peer.clock.points


def train_torchdistill(job: Job) -> list[tuple[float, float]]:
    """Distil as its sample for SST-2 does: KL of the logits at 3 with a weight of 0.9, AdamW at 1e-4, linear decay."""
    from peers import let_torchvision_import

    let_torchvision_import()
    import torch
    from torchdistill.core.distillation import get_distillation_box
    from torchdistill.losses.mid_level import KDLoss
    from torchdistill.losses.registry import register_mid_level_loss

    peer = Peer(job)

    @register_mid_level_loss
    class OwnLabels(KDLoss):
        """Take the labels out of the batch."""

        def forward(self, student: Any, teacher: Any, targets: Any = None, *_: Any, **__: Any) -> Any:
            return super().forward(student, teacher, targets["labels"])

    def side(**more: Any) -> dict[str, Any]:
        return {"forward_proc": "forward_batch_only_as_kwargs", "forward_hook": {"output": ["classifier"]}, **more}

    logits = {"module_path": "classifier", "module_io": "output"}
    kwargs = {f"{who}_{key}": value for who in ("student", "teacher") for key, value in logits.items()}
    criterion = {"key": "OwnLabels", "kwargs": kwargs | {"temperature": 3.0, "alpha": 0.9, "reduction": "batchmean"}}
    config = {
        "num_epochs": EPOCHS,
        "teacher": side(requires_grad=False),
        "student": side(),
        "criterion": {
            "key": "WeightedSumLoss",
            "kwargs": {"sub_terms": {"kd": {"criterion": criterion, "weight": 1.0}}},
        },
        "optimizer": {"key": "AdamW", "kwargs": {"lr": 1e-4, "weight_decay": 0.0}, "max_grad_norm": 1.0},
        "scheduler": {
            "key": "LinearLR",
            "kwargs": {"start_factor": 1.0, "end_factor": 0.0, "total_iters": peer.steps},
            "scheduling_step": 1,
        },
    }
    box = get_distillation_box(peer.teacher, peer.student, {}, config, torch.device("cpu"), None, False, 1)
    step = 0
    for epoch in range(EPOCHS):
        box.pre_epoch_process(epoch=epoch)
        for batch in peer.batches:
            targets = {"labels": batch.pop("labels")}
            box.pre_forward_process()
            loss = box.forward_process(batch, targets, None)
            box.post_forward_process(loss=loss)
            step += 1
            if step % peer.every == 0 or step == peer.steps:
                peer.score()
        box.post_epoch_process()
    return peer.clock.points


WORKERS: dict[str, Callable[[Job], list[tuple[float, float]]]] = {
    "limbeck": train_limbeck,
    "plain": train_plain,
    "textbrewer": train_textbrewer,
    "torchdistill": train_torchdistill,
}


def finish(curves: list[Curve], options: Namespace) -> None:
    """Print the table, write the file, and exit as ``--check`` asks."""
    table = Table(title=f"Time to a score, {options.seeds} seeds; seconds are medians over them")
    for column in ("data", "layers", "side"):
        table.add_column(column)
    for column in ("best score", "after s", "limbeck there after s", "ratio"):
        table.add_column(column, justify="right")
    table.add_column(f"target {FASTER:g}x")
    known = {(c.data, c.depth, c.seed, c.side): c for c in curves}
    missed, rows = [], []
    for data, depth, side in dict.fromkeys((c.data, c.depth, c.side) for c in curves):
        own = [c for c in curves if (c.data, c.depth, c.side) == (data, depth, side)]
        scores, after = [100 * c.best for c in own], [c.time_to(c.best) or 0.0 for c in own]
        deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        cells = [data, str(depth), side, f"{statistics.mean(scores):.2f}{deviation}", f"{statistics.median(after):.0f}"]
        ratio = None
        if side != "limbeck":
            ours = [known[data, depth, c.seed, "limbeck"].time_to(c.best) for c in own]
            reached = [t for t in ours if t is not None]
            ratios = [a / t if t is not None else 0.0 for a, t in zip(after, ours, strict=True)]
            ratio = statistics.median(ratios)
            there = (
                f"{statistics.median(reached):.0f}" if len(reached) == len(ours) else f"{len(reached)} of {len(ours)}"
            )
            cells += [there, f"{ratio:.1f}x", "yes" if ratio >= FASTER else "NO"]
            if ratio < FASTER:
                missed.append(f"{data}, {depth} layers, {side}")
        rows.append({"data": data, "layers": depth, "side": side, "scores": scores, "seconds": after, "ratio": ratio})
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json:
        curves_too = [vars(curve) for curve in curves]
        options.json.write_text(json.dumps({"rows": rows, "curves": curves_too}, indent=1) + "\n")
    conclude(missed, options)


if __name__ == "__main__":
    main()
