"""Run the same distillation on limbeck and on other toolkits: time, peak memory and the loss curve of each.

    python benchmarks/peers.py            # 12x384 -> 6x384, about a quarter of an hour on 2 cores
    python benchmarks/peers.py --quick    # one job of 6x384 -> 3x384, no memory: about a minute
    python benchmarks/peers.py --check    # exit with status 1 if a target is missed

Peers: the group ``peers``, best in an environment of its own: it brings torchvision, and one that was built for another
torch stops transformers from being imported (not here: see let_torchvision_import).

Every side runs its own training loop in a thread of its own; the sides take turns, step by step: in one process, as
two processes that do the same differ by more than 5 per cent, by where their memory happens to lie. All start from the
same weights, see the same rows and use the same AdamW. Two comparisons for each job and peer:

- limbeck without cache and dynamic padding, on the very batches of the peer. The fastest step of each side is shown;
  the median ratio of steps that were neighbours in time decides; the loss curves must agree.
- limbeck with its defaults (teacher's features cached, batches of similar length, padded to their longest row) against
  the peer on batches padded to 128: the whole job, computing the cache included. The batches are others, so the curves
  are printed only.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _table import Row, arguments, finish, peak_mb, peak_mb_here
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, SequentialSampler

STUBS: list[Any] = []  # operators last as long as the library that defines them


def let_torchvision_import() -> None:
    """Make torchvision importable where its wheel was built for another torch and cannot load its operators.

    torchdistill brings torchvision, whose usual wheel is for CUDA. Beside a CPU torch, nothing that looks for it can be
    imported, transformers included. None of its operators is needed here, but two must exist.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        STUBS.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            STUBS[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


let_torchvision_import()

# ruff: noqa: E402
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, TrainingArguments

from limbeck import CachedTeacher, Distiller, FeatureCache, LiveTeacher, Objective, Pair, SoftLogits, TaskLoss
from limbeck.distillation.fingerprint import fingerprint
from limbeck.methods.fitnets import Hint
from limbeck.methods.pkd import pkd
from limbeck.models.vocabulary import make_wordpiece
from limbeck.tasks import Collator, encode, load_task
from limbeck.training.trainer import RunTrainer

SHARED = Path(__file__).parents[2] / "shared"
LENGTH, WIDTH = 128, 384
ALPHA, TEMPERATURE, BETA, RATE, CLIP = 0.5, 5.0, 100.0, 5e-5, 1.0
JOBS = {"mse": "KD + hidden MSE", "pkd": "KD + PKD"}
PEERS = ("textbrewer", "torchdistill")
NOISE = 1.02
DEFAULTS_FASTER = 2.0
SAME_CURVE = 1e-5  # relative; rounding grows with the steps, a different loss or batch shows at once


@dataclass(frozen=True)
class Size:
    depth: int  # of the student; the teacher has twice as many blocks
    batch: int
    steps: int  # of an epoch
    epochs: int = 3

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(layer, 2 * layer) for layer in range(1, self.depth)]

    def __str__(self) -> str:
        return f"{2 * self.depth}x{WIDTH} -> {self.depth}x{WIDTH}, B={self.batch}"


FULL = Size(depth=6, batch=32, steps=6)
QUICK = Size(depth=3, batch=16, steps=4)
AGAIN = Size(depth=6, batch=32, steps=6, epochs=2)  # once more for the fastest step, of padded batches alone
MEMORY = Size(depth=6, batch=32, steps=3, epochs=1)


OF_THREAD: dict[int, Turns] = {}
# one hook for all threads: they stand still inside of it, and hooks must not come or go meanwhile
register_optimizer_step_post_hook(lambda *_: OF_THREAD[threading.get_ident()].end(steps=1))


class Turns:
    """Keep the time of one side, which stands still between its turns of one step until the others had theirs."""

    def __init__(self) -> None:
        self.reports: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.go: queue.Queue[None] = queue.Queue()
        self.since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """End a turn after each step of whatever optimiser is at work in this thread."""
        OF_THREAD[threading.get_ident()] = self
        self.end(steps=0)
        yield
        del OF_THREAD[threading.get_ident()]

    def end(self, steps: int) -> None:
        self.reports.put(("turn", time.perf_counter() - self.since, steps))
        self.go.get()
        self.since = time.perf_counter()


@cache
def tokenizer_and_task() -> tuple[Any, Any]:
    """Load real RTE where it is at hand, else the reviews that limbeck brings along."""
    tokens, glue = SHARED / "models" / "gte-small", SHARED / "data" / "glue"
    if tokens.is_dir() and glue.is_dir():
        return AutoTokenizer.from_pretrained(tokens), load_task("glue/rte", data_dir=str(glue))
    task = load_task("reviews")
    with tempfile.TemporaryDirectory() as folder:
        make_wordpiece(task.split("train")["review"], Path(folder, "tokenizer"))
        return AutoTokenizer.from_pretrained(Path(folder, "tokenizer")), task


def rows(size: Size, longest: bool) -> Any:
    """Return the training rows in a seeded random order, which is the order of the padded batches, too."""
    tokenizer, task = tokenizer_and_task()
    encoded = encode(task.text_columns, task.split("train"), tokenizer, LENGTH)
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()
    if longest:
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order.sort(key=lambda row: -lengths[row])
    return encoded.select(order[: size.batch * size.steps])


def models(size: Size) -> tuple[Any, Any]:
    """Make student and teacher, of the same weights in every process and without dropout: curves are compared."""
    tokenizer, task = tokenizer_and_task()
    found = []
    for depth in (size.depth, 2 * size.depth):
        torch.manual_seed(depth)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            num_hidden_layers=depth,
            num_attention_heads=12,
            intermediate_size=4 * WIDTH,
            num_labels=task.num_labels,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        found.append(BertForSequenceClassification(config))
    return found[0], found[1].eval()


def optimizer_of(student: Any) -> torch.optim.Optimizer:
    """Make the kind of optimiser that limbeck's trainer has: fused, which the peers' own examples are not."""
    return torch.optim.AdamW(student.parameters(), lr=RATE, weight_decay=0.0, fused=True)


# -- limbeck


def objective(job: str, pair: Pair, size: Size) -> Objective:
    if job == "pkd":
        return pkd(pair, alpha=ALPHA, temperature=TEMPERATURE, beta=BETA, layers=size.pairs)
    return Objective(
        task=(ALPHA, TaskLoss(pair)),
        kd=(1 - ALPHA, SoftLogits("classification", TEMPERATURE)),
        hidden=(1.0, Hint(pair, size.pairs)),
    )


class RecordedTrainer(RunTrainer):
    def __init__(self, *given: Any, ordered: bool) -> None:
        super().__init__(*given)
        self.ordered = ordered
        self.losses: list[Tensor] = []

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset) if self.ordered else super()._get_train_sampler(train_dataset)

    def compute_loss(self, *given: Any, **options: Any) -> Any:
        loss = super().compute_loss(*given, **options)
        self.losses.append(loss.detach())
        return loss


def limbeck(job: str, size: Size, data: Any, turns: Turns, folder: Path, *, cached: bool) -> list[float]:
    student, teacher = models(size)
    terms = objective(job, Pair.of(student, teacher, "classification"), size)
    tokenizer = tokenizer_and_task()[0]
    collate = Collator(tokenizer, pad_to=None if cached else LENGTH)
    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=size.epochs,
        per_device_train_batch_size=size.batch,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        label_names=["labels"],
        use_cpu=True,
    )
    with turns.running():
        teach: Any = LiveTeacher(teacher)
        if cached:
            store = FeatureCache(folder / "cache", data, fingerprint(teacher, tokenizer, data, LENGTH))
            store.fill(teach, collate, size.batch, terms.needs().teacher)
            teach = CachedTeacher(store)
            turns.end(steps=0)
        distiller = Distiller(student, terms, teach)
        trainer = RecordedTrainer(
            distiller, settings, data, collate, lambda: {}, folder / "history.jsonl", ordered=not cached
        )
        trainer.train()
    return [loss.item() for loss in trainer.losses]


# -- peers


def padded_batches(size: Size, data: Any) -> DataLoader[Any]:
    pad = Collator(tokenizer_and_task()[0], pad_to=LENGTH)

    def collate(chosen: list[Any]) -> dict[str, Tensor]:
        return {name: value for name, value in pad(chosen).items() if name != "ids"}

    return DataLoader(data, batch_size=size.batch, collate_fn=collate)


def textbrewer(job: str, size: Size, data: Any, turns: Turns, folder: Path) -> list[float]:
    """Train with its own masked losses of hidden states, and with T²·KL of the logits instead of its T²·CE."""
    from textbrewer import DistillationConfig, GeneralDistiller, TrainingConfig
    from textbrewer.presets import register_new

    def softened(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        s, t = student / temperature, teacher / temperature
        return temperature**2 * F.kl_div(s.log_softmax(-1), t.log_softmax(-1), reduction="batchmean", log_target=True)

    def adapt(batch: dict[str, Tensor], output: Any) -> dict[str, Any]:
        return {
            "logits": output.logits,
            "hidden": output.hidden_states,
            "losses": output.loss,
            "inputs_mask": batch["attention_mask"],
        }

    class Losses:
        """Stand in for TensorBoard's writer, which is off."""

        found: list[float] = []  # noqa: RUF012

        def add_scalar(self, name: str, value: float, _: int) -> None:
            if name == "scalar/total_loss":
                self.found.append(value)

    register_new("kd_loss", "kl", softened)
    student, teacher = models(size)
    loss, weight = ("pkd", BETA / WIDTH) if job == "pkd" else ("hidden_mse", 1.0)
    distiller = GeneralDistiller(
        TrainingConfig(device="cpu", output_dir=str(folder), ckpt_epoch_frequency=size.epochs),
        DistillationConfig(
            temperature=TEMPERATURE,
            kd_loss_type="kl",
            kd_loss_weight=ALPHA if job == "pkd" else 1 - ALPHA,
            hard_label_weight=1 - ALPHA if job == "pkd" else ALPHA,
            intermediate_matches=[
                {"layer_T": t, "layer_S": s, "feature": "hidden", "loss": loss, "weight": weight / len(size.pairs)}
                for s, t in size.pairs
            ],
        ),
        teacher,
        student,
        adapt,
        adapt,
    )
    distiller.tb_writer = Losses()
    batches = padded_batches(size, data)
    with turns.running(), distiller:
        distiller.train(optimizer_of(student), batches, size.epochs, max_grad_norm=CLIP, output_hidden_states=True)
    return distiller.tb_writer.found


def torchdistill(job: str, size: Size, data: Any, turns: Turns, folder: Path) -> list[float]:
    """Train with its forward hooks; it has no masked and no patient loss, so that both go in by its registry."""
    from torchdistill.core.distillation import get_distillation_box
    from torchdistill.losses.mid_level import KDLoss
    from torchdistill.losses.registry import register_mid_level_loss

    @register_mid_level_loss
    class LogitsAndLabels(KDLoss):
        def forward(self, student: Any, teacher: Any, targets: Any = None, *_: Any, **__: Any) -> Tensor:
            return super().forward(student, teacher, targets["labels"])

    @register_mid_level_loss
    class HiddenStates(nn.Module):
        def __init__(self, layer_s: int, layer_t: int) -> None:
            super().__init__()
            self.paths = path(layer_s), path(layer_t)

        def forward(self, student: Any, teacher: Any, targets: Any = None, *_: Any, **__: Any) -> Tensor:
            s, t = student[self.paths[0]]["output"], teacher[self.paths[1]]["output"]
            if job == "pkd":
                return F.mse_loss(F.normalize(s[:, 0], dim=-1), F.normalize(t[:, 0], dim=-1))
            real = targets["attention_mask"].bool()
            return F.mse_loss(s[real], t[real])

    def path(layer: int) -> str:
        return f"bert.encoder.layer.{layer - 1}"

    def side(layers: list[int], **more: Any) -> dict[str, Any]:
        hooked = ["classifier", *map(path, layers)]
        return {"forward_proc": "forward_batch_only_as_kwargs", "forward_hook": {"output": hooked}, **more}

    student, teacher = models(size)
    logits = {"module_path": "classifier", "module_io": "output"}
    terms: dict[str, Any] = {
        "logits": {
            "criterion": {
                "key": "LogitsAndLabels",
                "kwargs": {f"{who}_{key}": value for who in ("student", "teacher") for key, value in logits.items()}
                | {"temperature": TEMPERATURE, "alpha": 1 - ALPHA if job == "pkd" else ALPHA},
            },
            "weight": 1.0,
        }
    }
    for s, t in size.pairs:
        terms[f"hidden {s}"] = {
            "criterion": {"key": "HiddenStates", "kwargs": {"layer_s": s, "layer_t": t}},
            "weight": (BETA if job == "pkd" else 1.0) / len(size.pairs),
        }
    config = {
        "num_epochs": size.epochs,
        "teacher": side([t for _, t in size.pairs], requires_grad=False),
        "student": side([s for s, _ in size.pairs]),
        "criterion": {"key": "WeightedSumLoss", "kwargs": {"sub_terms": terms}},
        "optimizer": {
            "key": "AdamW",
            "kwargs": {"lr": RATE, "weight_decay": 0.0, "fused": True},
            "max_grad_norm": CLIP,
        },
    }
    batches = padded_batches(size, data)
    losses = []
    with turns.running():
        box = get_distillation_box(teacher, student, {}, config, torch.device("cpu"), None, False, 1)
        for epoch in range(size.epochs):
            box.pre_epoch_process(epoch=epoch)
            for batch in batches:
                targets = {"labels": batch.pop("labels"), "attention_mask": batch["attention_mask"]}
                box.pre_forward_process()
                loss = box.forward_process(batch, targets, None)
                box.post_forward_process(loss=loss)
                losses.append(loss.item())
            box.post_epoch_process()
    return losses


SIDES: dict[str, Callable[..., list[float]]] = {
    "textbrewer": textbrewer,
    "torchdistill": torchdistill,
    "limbeck, padded": partial(limbeck, cached=False),
    "limbeck": partial(limbeck, cached=True),
}


# -- the race


@dataclass
class Result:
    """Hold what one side did: the seconds and steps of its turns, and the loss of every step."""

    turns: list[tuple[float, int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def steps_ms(self) -> list[float]:
        return [1e3 * seconds for seconds, steps in self.turns if steps]

    def whole_ms(self, skipped_steps: int = 0) -> float:
        """Add up the time to the last step, what comes before the first included, or only what follows some steps."""
        done, total = 0, 0.0
        for seconds, steps in self.turns:
            done += steps
            if done > skipped_steps or not skipped_steps:
                total += seconds
        return 1e3 * total

    @property
    def curve(self) -> str:
        return f"{self.losses[0]:.5f} -> {self.losses[-1]:.5f}"


def run_side(turns: Turns, job: str, side: str, size: Size) -> None:
    """Run one side to its end; meant for a thread of its own."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            losses = SIDES[side](job, size, rows(size, longest=False), turns, Path(folder))
        turns.reports.put(("done", losses))
    except Exception:
        turns.reports.put(("failed", traceback.format_exc().strip().splitlines()[-1]))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars from between the lines of the table; errors are handed back."""
    logging.disable(logging.WARNING)
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield
    logging.disable(logging.NOTSET)


def race(job: str, sides: list[str], size: Size) -> dict[str, Result]:
    """Run all sides at once, but only one of them at work at any moment."""
    results = {side: Result() for side in sides}
    running = {side: Turns() for side in sides}
    number = 0
    while running:
        order = list(running)
        for side in order if number % 2 == 0 else reversed(order):
            if number:
                running[side].go.put(None)
            else:  # first each gets ready, which is not counted
                threading.Thread(target=run_side, args=(running[side], job, side, size), daemon=True).start()
            kind, *values = running[side].reports.get()
            if kind == "turn":
                if number:
                    results[side].turns.append((values[0], values[1]))
                continue
            if kind == "done":
                results[side].losses = values[0]
            else:
                results[side].error = values[0]
            del running[side]
        number += 1
    return results


class Mapped(Turns):
    """Record, instead of time, how much was mapped from files, at most, when a step ended."""

    most = 0.0

    def end(self, steps: int) -> None:
        self.most = max(self.most, mapped_mb())


def memory(job: str, side: str) -> float:
    """Measure models, optimiser and three steps over the longest rows, without files that are mapped into memory.

    The cache is such files: the system keeps their pages only while nobody else needs the room.
    """
    data = rows(MEMORY, longest=True)
    with tempfile.TemporaryDirectory() as folder:
        # libraries load and threads start before the measurement
        SIDES[side](job, Size(depth=2, batch=2, steps=1, epochs=1), data.select(range(2)), Mapped(), Path(folder))
    mapped, before = Mapped(), mapped_mb()
    with tempfile.TemporaryDirectory() as folder:
        peak = peak_mb_here(lambda: SIDES[side](job, MEMORY, data, mapped, Path(folder)))
    return peak - (mapped.most - before)


def mapped_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:")) / 1024


def compare(job: str, size: Size, options: Any) -> list[Row]:
    installed = [peer for peer in PEERS if importlib.util.find_spec(peer)]
    ours = ["limbeck, padded", "limbeck"]
    results = race(job, installed + ours, size)
    broken = [f"{side}: {results[side].error}" for side in ours if results[side].error]
    if broken:
        sys.exit("\n".join(broken))
    mb = {side: None if options.quick or result.error else peak_mb(job, side) for side, result in results.items()}
    padded, default = results["limbeck, padded"], results["limbeck"]
    steps = {side: result.steps_ms for side, result in results.items() if side != "limbeck" and not result.error}
    if not options.quick:
        again = race(job, list(reversed(steps)), AGAIN)
        steps = {side: milliseconds + again[side].steps_ms for side, milliseconds in steps.items()}
    found = []
    for peer in PEERS:
        same = Row(f"{JOBS[job]}, {size}: a step, same batches", peer, ours_mb=mb["limbeck, padded"])
        same.ours_ms = min(steps["limbeck, padded"])
        whole = Row(
            f"{JOBS[job]}, {size}: {size.epochs} epochs, defaults", peer, default.whole_ms(), ours_mb=mb["limbeck"]
        )
        found += [same, whole]
        if peer not in installed:
            same.note = whole.note = f"not installed: pip install {peer}"
            continue
        theirs = results[peer]
        same.against = whole.against = f"{peer} {metadata.version(peer)}"
        if theirs.error:
            same.note = whole.note = f"cannot run: {theirs.error}"
            continue
        same.theirs_mb = whole.theirs_mb = mb[peer]
        lean = [row.theirs_mb is None or row.ours_mb <= NOISE * row.theirs_mb for row in (same, whole)]
        apart = max(abs(a - b) / abs(b) for a, b in zip(padded.losses, theirs.losses, strict=True))
        same.theirs_ms = min(steps[peer])
        # neighbours in time, turn by turn: what slows the machine down slows both
        ratio = median(t / o for t, o in zip(steps[peer], steps["limbeck, padded"], strict=True))
        same.target = f"same curve, not slower, not more memory (to {NOISE - 1:.0%})"
        same.met = ratio >= 1 / NOISE and apart < SAME_CURVE and lean[0]
        curves = f"loss {padded.curve}, theirs {theirs.curve}, at most {apart:.0e} apart"
        same.note = f"fastest step {same.speedup:.3f}x, median of the turns {ratio:.3f}x; {curves}"
        whole.theirs_ms = theirs.whole_ms()
        if not options.quick:  # in a job of seconds the parts that all sides share weigh too much
            whole.target = f">= {DEFAULTS_FASTER:g}x, not more memory"
            whole.met = whole.speedup >= DEFAULTS_FASTER and lean[1]
        later = theirs.whole_ms(size.steps) / default.whole_ms(size.steps)
        whole.note = f"{later:.1f}x from the second epoch on; cache {default.turns[0][0]:.1f} s; loss {default.curve}"
    return found


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory:
        with quiet():
            found = memory(*options.memory)
        print(found)
        return
    size = QUICK if options.quick else FULL
    jobs = list(JOBS)[:1] if options.quick else list(JOBS)
    with quiet():
        rows = [row for job in jobs for row in compare(job, size, options)]
    task = tokenizer_and_task()[1].name
    finish(f"The same distillation on other toolkits ({task}, padded to {LENGTH})", rows, options)


if __name__ == "__main__":
    main()
