"""Choose the head that answers a problem, describe its labels in the config, and check that it fits a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from limbeck.errors import ModelError
from limbeck.models.families import family_of, head_of
from limbeck.problems import Problem
from limbeck.tasks.labels import order_option
from limbeck.tasks.task import Task

PROBLEM_TYPE: dict[Problem, str] = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}
_KIND: dict[Problem, str] = {  # of a head, in words
    "classification": "classification",
    "regression": "classification",
    "multi_label": "classification",
    "tokens": "token classification",
    "span": "question answering",
    "language_model": "language modelling",
}
_PROBLEM_OF_HEAD: dict[str, Problem] = {  # of a text's head, its config says more
    "SequenceClassification": "classification",
    "TokenClassification": "tokens",
    "QuestionAnswering": "span",
}


def model_class(problem: Problem, config: Any) -> Any:
    """Return the transformers class whose head answers the problem; a language model's follows from its family.

    Raises where transformers has no such head for the family.
    """
    heads = _heads(config)
    wanted = heads.get(problem, heads["classification"])
    if type(config) not in wanted._model_mapping:
        there = [_KIND[name] for name, found in heads.items() if type(config) in found._model_mapping]
        raise ModelError(
            f"transformers has no {_KIND[problem]} head for {config.model_type} models (it has: "
            f"{', '.join(there) or 'none'}). Choose a model of another family for this task."
        )
    return wanted


def _heads(config: Any) -> dict[Problem, Any]:
    return {
        "classification": AutoModelForSequenceClassification,
        "tokens": AutoModelForTokenClassification,
        "span": AutoModelForQuestionAnswering,
        "language_model": AutoModelForCausalLM if family_of(config).causal else AutoModelForMaskedLM,
    }


def problem_of(config: Any) -> Problem:
    """Tell from its config which problem the head of a saved model answers."""
    problem = _PROBLEM_OF_HEAD.get(_saved_head(config), "classification")
    if problem != "classification":
        return problem
    kinds: dict[str, Problem] = {name: problem for problem, name in PROBLEM_TYPE.items()}
    return kinds.get(config.problem_type, "regression" if config.num_labels == 1 else "classification")


def problem_of_model(model: Any, label: Any = None) -> Problem:
    """Tell which problem a loaded model answers, from its head, its config and a row's label, where there is one."""
    head = head_of(type(model).__name__)
    if head in ("MaskedLM", "CausalLM", "PreTraining") or type(model).__name__.endswith("LMHeadModel"):
        return "language_model"
    if head in _PROBLEM_OF_HEAD and head != "SequenceClassification":
        return _PROBLEM_OF_HEAD[head]
    for problem, name in PROBLEM_TYPE.items():
        if model.config.problem_type == name:
            return problem
    if label is not None and np.ndim(label) == 1:
        return "multi_label"
    return "regression" if model.config.num_labels == 1 else "classification"


def other_saved_head(model: Any) -> str | None:
    """Name the head that the checkpoint of a loaded model has, where it is none of the model's kind.

    Its weights may have been taken all the same: BERT's heads of texts and of tokens are named alike.
    """
    saved = _saved_head(model.config)
    return saved if saved in _PROBLEM_OF_HEAD and saved != head_of(type(model).__name__) else None


def _saved_head(config: Any) -> str:
    return head_of((config.architectures or [""])[0])


def label_config(task: Task) -> dict[str, Any]:
    """Return the entries of a model's config that describe the task's labels, kept in every exported model."""
    if task.problem == "language_model":
        return {}
    names = ("start", "end") if task.problem == "span" else task.label_names or ("score",)
    return {
        "problem_type": PROBLEM_TYPE.get(task.problem),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def names_of_labels(source: str | Path, config: Any) -> tuple[str, ...]:
    """Return the name of each output of a model's head, in order; raise where its config does not number them so."""
    count = config.num_labels
    if set(config.id2label) != set(range(count)):
        seen = ", ".join(map(repr, list(config.id2label)[:8]))
        raise ModelError(
            f"{source} has {count} labels, which id2label in its config.json numbers {seen}: they must be counted from "
            f"0 to {count - 1}, without gaps, or nobody knows which output is which label. Correct id2label and "
            "label2id in its config.json."
        )
    return tuple(str(config.id2label[index]) for index in range(count))


def check_head(source: str | Path, config: Any, task: Task) -> None:
    """Raise where a model with this config does not answer what the task asks."""
    if (answers := problem_of(config)) != task.problem:
        raise ModelError(f"{source} answers a problem of the kind '{answers}', but {task.name} is '{task.problem}'.")
    if task.label_names:
        check_labels(source, config, task)


def check_labels(source: str | Path, config: Any, task: Task) -> None:
    """Raise where a model with this config predicts other labels than the task has."""
    if config.num_labels != task.num_labels:
        raise ModelError(
            f"{source} predicts {config.num_labels} labels, but {task.name} has {task.num_labels}: "
            f"it was fine-tuned for another task. Run: limbeck finetune {task.name} --model ..."
        )
    seen = names_of_labels(source, config)
    if has_generic_names(config) or seen == task.label_names:
        return
    if set(seen) == set(task.label_names) and task.label_order != "fixed":
        raise ModelError(
            f"{source} numbers the labels {', '.join(seen)} in this order, but {task.name} has them in the order "
            f"{', '.join(task.label_names)}. State the model's order: {order_option(seen)}"
        )
    raise ModelError(
        f"{source} predicts the labels {', '.join(seen)}, but {task.name} has {', '.join(task.label_names)} in "
        f"this order: it was fine-tuned for another task. Run: limbeck finetune {task.name} --model ..."
    )


def has_labels_of(config: Any, task: Task) -> bool:
    """Tell whether a saved model's outputs may stand for the task's labels: as many, and not with other names."""
    if config.num_labels != task.num_labels:
        return False
    return not task.label_names or has_generic_names(config) or tuple(config.id2label.values()) == task.label_names


def has_generic_names(config: Any) -> bool:
    """Tell whether a model's labels have the names that transformers gives to those without: LABEL_0, LABEL_1, ..."""
    return dict(config.id2label) == {index: f"LABEL_{index}" for index in range(config.num_labels)}


def no_trained_head(source: str | Path, missing: list[str], task: Task | None) -> ModelError:
    """Make the error to raise where a checkpoint lacks the weights of the head."""
    kind = _KIND[task.problem if task is not None else "classification"]
    return ModelError(
        f"{source} has no trained {kind} head (missing: {', '.join(missing[:3])}). "
        f"Fine-tune it first: limbeck finetune {task.name if task else 'TASK'} --model {source}"
    )
