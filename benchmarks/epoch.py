"""Time an epoch of real RTE and CoLA: padded to 128 with a live teacher, padded dynamically, read from a cache.

    python benchmarks/epoch.py            # every 2nd batch of RTE, every 8th of CoLA: about 12 minutes on 2 cores
    python benchmarks/epoch.py --every 1  # whole epochs
    python benchmarks/epoch.py --quick    # six batches of each epoch
    python benchmarks/epoch.py --check    # exit with status 1 if a target is missed

The teacher is the 12-layer encoder of --model, the student its first 6 layers. The sides take turns of a few steps
until each has made its epoch, and their times are sums. A step is the trainer's own: loader, loss, backward pass,
clipping and optimiser. Writing the cache, which happens once however many epochs and runs follow, is timed apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _table import Row, finish, parser, seconds
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from limbeck import CachedTeacher, RunDirectory, load_recipe
from limbeck.training.assemble import assemble, load_data
from limbeck.training.cache_policy import fill_for_run, named_cache
from limbeck.training.trainer import RunTrainer

SHARED = Path(__file__).parents[2] / "shared"
FASTER = {"cola": 8.0, "rte": 2.5}  # dynamic and cached, against fixed and live
SIDES: dict[str, dict[str, Any]] = {
    "fixed, live": {"padding": "max_length", "cache": "off"},
    "dynamic, live": {"padding": "longest", "cache": "off"},
    "dynamic, cached": {"padding": "longest", "cache": "cache"},
}
EVERY = {"cola": 8, "rte": 2}  # batches to the next one that is measured
TURN = 4  # steps


class Side:
    """Run the epoch in one way, a turn at a time."""

    def __init__(self, task: str, options: argparse.Namespace, folder: Path, padding: str, cache: str) -> None:
        recipe = load_recipe(
            values={
                "task": {"name": f"glue/{task}", "data_dir": str(options.data), "padding": padding},
                "teacher": {
                    "model": str(folder / "teacher"),
                    "cache": cache if cache == "off" else str(folder / cache),
                },
                "student": {"from": "teacher", "keep": "first:6"},
                "method": {"name": options.method},
            }
        )
        parts = assemble(recipe)
        data = load_data(recipe, parts)
        cache = named_cache(recipe, parts, data)
        self.writing = seconds(lambda: cache and fill_for_run(cache, recipe, parts, data, torch.device("cpu")))
        distiller = parts.distiller.taught_by(CachedTeacher(cache)) if cache else parts.distiller
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=32, use_cpu=True, remove_unused_columns=False,
            label_names=["labels"], dataloader_pin_memory=False, disable_tqdm=True,
        )  # fmt: skip
        self.trainer = RunTrainer(
            distiller, arguments, data.splits["train"], data.collate, lambda _: {}, RunDirectory(folder)
        )
        self.trainer.current_gradient_accumulation_steps = 1  # set by train(), whose loop is taken apart here
        self.trainer.create_optimizer()
        loader = self.trainer.get_train_dataloader()
        self.steps, self.seconds = len(loader), 0.0
        every = max(1, self.steps // 6) if options.quick else options.every or EVERY[task]
        self.batches: Iterator[Any] = islice(loader, 0, None, every)
        self.counted = len(range(0, self.steps, every))

    def take_turn(self) -> bool:
        """Make some steps; return False when the epoch is over."""
        went_on = False

        def turn() -> None:
            nonlocal went_on
            for batch in islice(self.batches, TURN):
                went_on = True
                model = self.trainer.model
                self.trainer.training_step(model, batch)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                self.trainer.optimizer.step()
                model.zero_grad()

        self.seconds += seconds(turn)
        return went_on


def measure(task: str, options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        torch.manual_seed(0)
        labels = {"num_labels": 2, "num_hidden_layers": 12}
        AutoModelForSequenceClassification.from_pretrained(options.model, **labels).save_pretrained(folder / "teacher")
        AutoTokenizer.from_pretrained(options.model).save_pretrained(folder / "teacher")
        sides = {name: Side(task, options, folder, **settings) for name, settings in SIDES.items()}
        # every side gives up the same share of its epoch in a round, so that a slow minute hits all of them
        left = dict(sides)
        while left:
            left = {name: side for name, side in left.items() if side.take_turn()}
        base = sides["fixed, live"]
        rows = []
        for name, side in sides.items():
            row = Row(f"{task}, {options.method}: {name}", "fixed, live", 1e3 * side.seconds, 1e3 * base.seconds)
            row.note = f"{side.counted} of {side.steps} steps, {side.seconds / side.counted:.2f} s each"
            if name == "dynamic, cached":
                row.target, row.met = f">= {FASTER[task]:g}x", (row.speedup or 0) >= FASTER[task]
                row.note += f"; writing the cache took {side.writing:.0f} s"
            rows.append(row)
        return rows


def main() -> None:
    command = parser(__doc__.splitlines()[0])
    command.add_argument("--data", type=Path, default=SHARED / "data" / "glue", help="the GLUE folder")
    command.add_argument("--model", default=str(SHARED / "models" / "gte-small"), help="a 12-layer encoder")
    command.add_argument("--every", type=int, metavar="N", help="measure every N-th batch; 1 is the whole epoch")
    command.add_argument("--method", default="fcd", help="what is distilled; fcd reads all tokens of six layers")
    options = command.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.data.is_dir():
        sys.exit(f"{options.data} is missing: give the GLUE folder with --data, and an encoder with --model.")
    rows = [row for task in FASTER for row in measure(task, options)]
    finish("One epoch of 12x384 -> 6x384 on real data", rows, options)


if __name__ == "__main__":
    main()
