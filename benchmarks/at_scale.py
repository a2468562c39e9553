"""Compute what large jobs would cost, from shapes alone: the tables of docs/scale.md. Nothing is measured or loaded.

    python benchmarks/at_scale.py             # print the tables
    python benchmarks/at_scale.py --write     # put them into docs/scale.md
    python benchmarks/at_scale.py --check     # exit with status 1 if docs/scale.md has others

A pass of a model costs two operations for each weight of its blocks and token, and four for each token that a token
sees, layer and dimension; the backward pass twice as many. What a loss adds is what ``limbeck methods NAME`` prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, BertConfig, LlamaConfig

from limbeck import METHODS, Pair
from limbeck.distillation.feature_cache import count_numbers
from limbeck.distillation.method import Method
from limbeck.distillation.pair import ModelShape
from limbeck.methods.costs import loss_cost
from limbeck.models.families import blocks_of
from limbeck.models.loading import count_parameters

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- tables: python benchmarks/at_scale.py --write -->", "<!-- end of tables -->"

# Of a GPU with 312 TFLOP/s in bfloat16 and 80 GB, as large clusters have had since 2020; what training reaches of it.
FLOPS, REACHED, MEMORY = 312e12, 0.4, 80e9
LEAST_STEP = 0.02  # seconds: starting the kernels of a small step takes so long, whatever they compute
DISK = 3e9  # bytes in a second from a local SSD
LINKS = {8: 200e9, 64: 25e9}  # bytes in a second between the GPUs of one machine, and of eight
GPUS = (1, 8, 64)

# Rows of GLUE's training data, and tokens of BERT's in a text or pair: means over 1,500 rows or more, rounded
GLUE = {
    "CoLA": (8_551, 11), "SST-2": (67_349, 13), "MRPC": (3_668, 54), "STS-B": (5_749, 27), "QQP": (363_846, 31),
    "MNLI": (392_702, 40), "QNLI": (104_743, 49), "RTE": (2_490, 70), "WNLI": (635, 37),
}  # fmt: skip
BATCH, EPOCHS = 32, 3
SHOWN = ("kd", "cka", "fsd_il", "fcd")
STUDY_METHODS, STUDY_SEEDS = 10, 6


@dataclass(frozen=True)
class Model:
    """Hold an architecture without weights."""

    config: Any

    @cached_property
    def network(self) -> Any:
        with torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(self.config)

    @property
    def shape(self) -> ModelShape:
        return ModelShape.of(self.network)

    @property
    def weights(self) -> int:
        return count_parameters(self.network)

    def forward(self, tokens: float, length: float) -> float:
        """Count the operations of a pass over so many tokens in texts of this length."""
        blocks = blocks_of(self.network)
        seen = length / 2 if self.shape.causal else length
        return tokens * (2 * count_parameters(blocks) + 4 * len(blocks) * seen * self.config.hidden_size)


@dataclass(frozen=True)
class Run:
    """Hold one training: the cost of its parts in operations and bytes."""

    student: Model
    teacher: Model
    method: str
    rows: int
    length: int
    epochs: float = EPOCHS
    batch: int = BATCH
    bytes_of_number: int = 4

    @property
    def tokens(self) -> float:
        return self.rows * self.length

    @property
    def pair(self) -> Pair:
        return Pair(self.student.shape, self.teacher.shape, "classification", 2)

    @property
    def steps(self) -> float:
        return self.epochs * self.rows / self.batch

    @property
    def training(self) -> float:
        """Count what the student and the loss compute."""
        loss = loss_cost(self.method, self.pair, self.batch, self.length)
        return 3 * self.epochs * self.student.forward(self.tokens, self.length) + 3 * self.steps * loss.flops

    @property
    def teaching(self) -> float:
        """Count what the teacher computes in one pass over the data."""
        return self.teacher.forward(self.tokens, self.length)

    @property
    def cache(self) -> int:
        """Count the bytes of what the method asks of its teacher."""
        objective = Method.of(METHODS[self.method](self.pair)).objective
        names = objective.needs().teacher.names()
        return self.bytes_of_number * count_numbers(self.teacher.network, names, self.rows, int(self.tokens))

    def seconds(self, cached: bool) -> float:
        """Estimate the time on one GPU."""
        teacher = self.teaching * (1 if cached else self.epochs)
        reading = self.epochs * self.cache / DISK if cached else 0.0
        return max((self.training + teacher) / (FLOPS * REACHED), self.steps * LEAST_STEP) + reading


def glue_tables() -> list[str]:
    """Describe BERT-base and a student of half its layers on GLUE."""
    teacher, student = Model(BertConfig()), Model(BertConfig(num_hidden_layers=6))
    runs = {name: Run(student, teacher, "fcd", *size) for name, size in GLUE.items()}
    head = ["task", "rows", "tokens", "steps", "operations: student and loss of `fcd`", "teacher, each pass", "one run"]
    lines = table_head(head)
    for name, run in runs.items():
        sizes = [f"{run.rows:,}", str(run.length), f"{run.steps:,.0f}"]
        lines.append(_row(name, [*sizes, exponent(run.training), exponent(run.teaching), duration(run.seconds(True))]))
    everything = sum(run.seconds(True) for run in runs.values())
    training, teaching = (sum(getattr(run, name) for run in runs.values()) for name in ("training", "teaching"))
    lines += [_row("all", ["", "", "", exponent(training), exponent(teaching), duration(everything)]), ""]
    study, longest = STUDY_METHODS * STUDY_SEEDS, max(run.seconds(True) for run in runs.values())
    what = f"{STUDY_METHODS} methods, {STUDY_SEEDS} seeds, {len(GLUE)} tasks: {study * len(GLUE)} runs"
    lines += table_head([what, *map(gpus_in_words, GPUS)])
    times = [duration(max(study * everything / gpus, longest)) for gpus in GPUS]
    lines += [_row("one run on each GPU (`limbeck study --ray auto`)", times), ""]
    lines += table_head(["the teacher's features of a task", *(f"`{name}`" for name in SHOWN)])
    for task in ("RTE", "SST-2", "MNLI"):
        lines.append(_row(task, [size(Run(student, teacher, name, *GLUE[task]).cache) for name in SHOWN]))
    return lines


def corpus_tables() -> list[str]:
    """Describe a decoder of 7 billion weights, a student of half its layers, and a billion tokens, 1,024 in a block."""
    shape = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "pad_token_id": 0}
    teacher, student = (Model(LlamaConfig(num_hidden_layers=depth, **shape)) for depth in (32, 16))
    rows, length = 10**9 // 1024, 1024
    what = f"{teacher.weights / 1e9:.1f} to {student.weights / 1e9:.1f} billion weights, one epoch"
    lines = table_head([what, *(f"`{name}`" for name in SHOWN)])
    runs = [Run(student, teacher, name, rows, length, 1.0, 64, 2) for name in SHOWN]
    lines += [
        _row("operations: student and loss", [exponent(run.training) for run in runs]),
        _row("teacher", [exponent(run.teaching) for run in runs]),
        _row("features in 16 bits, whole", [size(run.cache) for run in runs]),
        _row("logits of every token, in 16 bits", [size(2 * rows * length * teacher.config.vocab_size)] * len(runs)),
    ]
    for gpus in GPUS:
        times = [run.seconds(False) / gpus + _sharing(run, gpus) for run in runs]
        lines.append(_row(f"time on {gpus_in_words(gpus)}", [duration(time) for time in times]))
    for gpus in GPUS:
        own = 16 * student.weights / gpus + 4 * teacher.weights
        fits = "fits" if own < 0.8 * MEMORY else "does not fit"
        lines.append(_row(f"weights and optimiser on each of {gpus}", [f"{size(int(own))}: {fits}"] * len(runs)))
    return lines


def table_head(cells: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |", "|---|" + "---:|" * (len(cells) - 1)]


def gpus_in_words(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _sharing(run: Run, gpus: int) -> float:
    """Estimate what exchanging weights and gradients takes: each step gathers weights twice and scatters gradients."""
    return 0.0 if gpus == 1 else run.steps / gpus * 3 * 4 * run.student.weights / LINKS[gpus]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def exponent(value: float) -> str:
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa}·10^{int(power)}"


def duration(seconds: float) -> str:
    for limit, unit, name in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86_400:.3g} days"


def size(count: int) -> str:
    power = 0
    while count >= 1_000 ** (power + 1) and power < 4:
        power += 1
    return f"{count / 1_000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    reader.add_argument("--check", action="store_true", help="exit with status 1 if docs/scale.md has other tables")
    reader.add_argument("--quick", action="store_true", help="nothing: it takes seconds")
    options = reader.parse_args()
    parts = ["", "### BERT-base on GLUE", "", *glue_tables(), "", "### A decoder on a corpus", "", *corpus_tables(), ""]
    text = "\n".join(parts)
    if not (options.write or options.check):
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    if options.write:
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    elif old != text:
        print(f"{PAGE.name} has other tables than those that follow from the shapes: run it with --write.")
        sys.exit(1)


if __name__ == "__main__":
    main()
