"""Train runs of tiny models, of every kind that an analysis must take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer

from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences, write_csv
from helpers.tiny_tokenizers import make_bpe
from limbeck import execute, load_recipe, load_task
from limbeck.models.heads import label_config
from limbeck.problems import Problem

TRAIN = {"max_steps": 4, "batch_size": 8, "learning_rate": 3e-3, "eval_strategy": "no", "save_strategy": "no"}
KEPT = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 10}
FSD = {"name": "fsd", "memory": 4, "passes": 1}
STILL = {"learning_rate": 1e-30}  # less than any weight can change by
HALF, ALL = ({"from": "teacher", "keep": f"first:{depth}", "head": "kept"} for depth in (2, 4))  # of four
CONFIG = {"config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}}
RUNS = {
    "kd": {},
    "fsd": {"method": FSD, "train": KEPT},
    "narrow": {"student": CONFIG, "train": STILL},
    "same": {"student": ALL, "train": STILL},
    "stages": {"method": {"name": "tinybert"}},
    "alone": {"method": {"name": "ft"}},  # without a teacher
    "learning teacher": {"method": {"name": "metadistil"}},
    "regression": {"problem": "regression"},
    "multi_label": {"problem": "multi_label"},
    "tokens": {"problem": "tokens"},
    "span": {"problem": "span"},
    "text": {"problem": "language_model"},
    "headless": {"problem": "language_model", "method": {"name": "minilmv2"}},
    "gpt2": {"family": "gpt2"},
    "gpt2 text": {"problem": "language_model", "family": "gpt2"},
}
SIZES = {"train": 48, "dev": 40}
BATCHES, BATCH = 8, 5  # of the validation data: so many, so large


class TinyRuns:
    """Train a run when it is first asked for; ``runs("kd")`` is its directory."""

    def __init__(self, home: Path, tokenizer_folder: Path) -> None:
        self.home, self.words = home, {"bert": tokenizer_folder, "gpt2": make_bpe(home / "words", "gpt2")}

    def __call__(self, name: str) -> Path:
        folder = self.home / "runs" / name
        if not folder.exists():
            execute(load_recipe(values=self.recipe(name)), folder)
        return folder

    def recipe(self, name: str) -> dict[str, Any]:
        spec = {"problem": "classification", "family": "bert", "method": {"name": "kd"}, "train": {}} | RUNS[name]
        block = write_data(spec["problem"], self.home / f"data-{spec['problem']}")
        source = self.teacher(spec["family"], spec["problem"], block, headless=name == "headless")
        values = {"task": block, "student": spec.get("student", HALF), "method": spec["method"]}
        values |= (
            {"student": {"model": source}} if name == "alone" else {"teacher": {"model": source, "confirmed": True}}
        )
        return values | {"train": TRAIN | spec["train"]}

    def teacher(self, family: str, problem: Problem, block: dict[str, Any], headless: bool) -> str:
        """Save a teacher with large weights, so that its features differ as those of a trained model do."""
        folder = self.home / f"{family}-{problem}{'-headless' * headless}"
        if not folder.exists():
            tokenizer = AutoTokenizer.from_pretrained(self.words[family])
            task = load_task(**{key: value for key, value in block.items() if key != "max_length"})
            special = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            if family == "gpt2":
                special |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
            special |= {"initializer_range": 0.2} | label_config(task)
            model = tiny_model(family, 4, task.num_labels, problem=problem, **special)
            (model.base_model if headless else model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return str(folder)


def write_data(problem: Problem, folder: Path) -> dict[str, Any]:
    """Return the task block of a recipe; its files are written once."""
    folder.mkdir(exist_ok=True)
    texts = {split: sentences(count, seed=count) for split, count in SIZES.items()}
    if problem == "span":
        for split, rows in texts.items():
            (folder / f"{split}-v1.1.json").write_text(json.dumps(questions(split, rows)))
        return {"name": "squad/1.1", "data_dir": str(folder), "stride": 4, "max_length": 24}
    block = {"name": "table", "text": "text", "label": "label", "max_length": 16, "problem": problem, "separator": ";"}
    for split, rows in texts.items():
        path = folder / f"{split}.{'csv' if problem not in ('tokens', 'language_model') else 'txt'}"
        if problem == "tokens":
            block = {"name": "tokens", "max_length": 16}
            lines = [
                "\n".join(f"{word} {'B-A' if word in ('a', 'the') else 'O'}" for word in t.split()) for t, _ in rows
            ]
            path.write_text("\n\n".join(lines) + "\n")
        elif problem == "language_model":
            block = {"name": "text", "max_length": 8}
            path.write_text("".join(f"{text}\n" for text, _ in rows))
        else:
            write_csv(path, [(text, label_of(problem, text, label)) for text, label in rows])
    return block | {"train": str(folder / path.with_stem("train").name), "validation": str(folder / path.name)}


def label_of(problem: Problem, text: str, label: str) -> str:
    if problem == "classification":
        return label
    if problem == "regression":
        return str(len(text.split()) / 4)
    return ";".join(word for word in ("cat", "dog", "not") if word in text.split())


def questions(split: str, rows: list[tuple[str, str]]) -> dict[str, Any]:
    paragraphs = []
    for number, (text, _) in enumerate(rows):
        answer = {"text": text.split()[0], "answer_start": 0}
        about = {"id": f"{split}-{number}", "question": "sees the", "answers": [answer]}
        paragraphs.append({"context": f"{text} {text}", "qas": [about]})
    return {"version": "1.1", "data": [{"title": split, "paragraphs": paragraphs}]}


def recipe_of(folder: Path) -> dict[str, Any]:
    """Return the recipe of a run's last stage."""
    recipe: dict[str, Any] = yaml.safe_load((folder / "recipe.yaml").read_text())
    return recipe["stages"][-1] if "stages" in recipe else recipe
