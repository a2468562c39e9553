"""Show what texts without labels are worth: students of 500 labelled rows, without and with the other texts.

    python benchmarks/fewer_labels.py --data FOLDER --model MODEL            # about 20 minutes on one core
    python benchmarks/fewer_labels.py --data FOLDER --model MODEL --check    # exit with status 1 if worth nothing

FOLDER has banking77's train.csv and test.csv (text, category). Of the 10,003 training rows 500 keep their labels, the
same share of each intent; the others are texts alone. A teacher is fine-tuned on the 500; students of 3 of its layers
are trained for as many steps each, 5 seeds: on the labels (ft), by distillation on the same 500 rows (kd), and by
distillation with the texts without labels too. Settings are fixed before: nothing is chosen by the 3,080 test rows.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from _table import conclude, parser

from limbeck.compare.comparison import compare_paths
from limbeck.compare.tables import render
from limbeck.study.engines import InProcess
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study
from limbeck.tasks.held_out import content_hash

LABELLED = 500
SEEDS = (0, 1, 2, 3, 4)
MORE = "kd, more texts"


def main() -> None:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", required=True, type=Path, help="banking77: train.csv and test.csv")
    reader.add_argument("--model", required=True, help="the pre-trained encoder, e.g. gte-small")
    reader.add_argument("--output", type=Path, default=Path("fewer-labels"), help="goes on where it was interrupted")
    reader.add_argument("--steps", type=int, default=300, help="of each student")
    options = reader.parse_args()
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    divide(options.data / "train.csv", options.output)
    steps, seeds = (40, SEEDS[:2]) if options.quick else (options.steps, SEEDS)
    study = options.output / "study.yaml"
    study.write_text(json.dumps(study_of(options, steps, seeds), indent=1))  # JSON is YAML
    run_study(load_study(study), options.output / "study", InProcess(options.threads))
    print(render(compare_paths([options.output / "study"]).table, "markdown"))
    scores = scores_of(options.output / "study")
    if options.json:
        options.json.write_text(json.dumps(scores, indent=1) + "\n")
    gains = [more - alone for more, alone in zip(scores[MORE], scores["ft"], strict=True)]
    print(f"{MORE} beats ft by {100 * min(gains):.1f} to {100 * max(gains):.1f} points, seed by seed.")
    conclude([f"{MORE} is not better than ft with every seed"] * (min(gains) <= 0), options)


def divide(train: Path, folder: Path) -> None:
    """Write 500 labelled rows, shared among the intents as all rows are, and the texts of the others."""
    by_intent = defaultdict(list)
    with train.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    for text, intent in sorted(rows, key=lambda row: content_hash(row[0])):
        by_intent[intent].append(text)
    # the n-th text of an intent has the place n / texts: the first 500 places are those of all intents alike
    places = sorted(
        ((number + 0.5) / len(texts), intent, text)
        for intent, texts in by_intent.items()
        for number, text in enumerate(texts)
    )
    with (folder / "labelled.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "category"), *((text, intent) for _, intent, text in places[:LABELLED])])
    with (folder / "more.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text",), *((text,) for _, _, text in places[LABELLED:])])


def study_of(options: Any, steps: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    more = {"method.name": "kd", "task.unlabelled": str(options.output / "more.csv"), "task.unlabelled_share": 0.75}
    return {
        "tasks": ["table"],
        "task": {
            "train": str(options.output / "labelled.csv"),
            "validation": str(options.data / "test.csv"),
            "text": "text",
            "label": "category",
            "max_length": 64,
        },
        "teacher": {
            "model": options.model,
            "train": {"epochs": 10, "batch_size": 16, "learning_rate": 1e-4, "eval_strategy": "no"},
        },
        "student": {"from": "teacher", "keep": "spread:3"},
        "train": {"max_steps": steps, "batch_size": 32, "learning_rate": 2e-4, "eval_strategy": "no"},
        "methods": {"ft": {}, "kd": {}, MORE: more},
        "seeds": list(seeds),
        "rivals": False,
    }


def scores_of(study: Path) -> dict[str, list[float]]:
    """Return the accuracy of each method's runs, in the order of their seeds."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for file in sorted((study / "runs").glob("*/metrics.json")):
        results = json.loads(file.read_text())
        name = MORE if "unlabelled" in results else results["method"]
        found[name][results["seed"]] = results["score"]
    return {name: [scores[seed] for seed in sorted(scores)] for name, scores in found.items()}


if __name__ == "__main__":
    sys.exit(main())
