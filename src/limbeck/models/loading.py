"""Load models and tokenizers from a run directory, a folder or the hub, and check that they fit together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from limbeck._internal import hub
from limbeck.errors import ModelError, RecipeError
from limbeck.models.families import family_of, head_of
from limbeck.problems import Problem
from limbeck.tasks.task import Task

_PROBE = "It's a probe: tokenizers must agree on Words, numbers (3.14) and naïve accents."
PROBLEM_TYPE: dict[Problem, str] = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}
_ANSWERS: dict[str, Problem] = {  # of a text's head, its config says more
    "SequenceClassification": "classification",
    "TokenClassification": "tokens",
    "QuestionAnswering": "span",
}


def resolve(source: str | Path) -> str:
    """A run directory stands for the model it holds; anything else is a folder or a name on the hub."""
    inside = Path(source) / "student"
    if (inside / "config.json").is_file():
        return str(inside)
    if (Path(source) / "recipe.yaml").is_file():
        raise ModelError(
            f"{source} is a run directory without a model: the run has not finished. Continue it with --resume."
        )
    return str(source)


def load_tokenizer(source: str | Path, **options: Any) -> Any:
    """The tokenizer saved with a model; decoders without a padding token pad with their end token.

    ``options`` are settings of the tokenizer that differ from those it was saved with.
    """
    tokenizer = _load(AutoTokenizer, resolve(source), **options)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"The tokenizer of {source} has neither a padding token nor an end token, so texts of different length "
                "cannot share a batch. Add one to the tokenizer, make room for it with "
                "model.resize_token_embeddings(len(tokenizer)), and save both again."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def model_class(problem: Problem, config: Any) -> Any:
    """The transformers class whose head answers the problem; a language model's follows from its family."""
    if problem == "language_model":
        return AutoModelForCausalLM if family_of(config).causal else AutoModelForMaskedLM
    heads = {"tokens": AutoModelForTokenClassification, "span": AutoModelForQuestionAnswering}
    return heads.get(problem, AutoModelForSequenceClassification)


def problem_of(config: Any) -> Problem:
    """What the head of a saved model answers."""
    problem = _ANSWERS.get(_saved_head(config), "classification")
    if problem != "classification":
        return problem
    kinds: dict[str, Problem] = {name: problem for problem, name in PROBLEM_TYPE.items()}
    return kinds.get(config.problem_type, "regression" if config.num_labels == 1 else "classification")


def _saved_head(config: Any) -> str:
    return head_of((config.architectures or [""])[0])


def label_config(task: Task) -> dict[str, Any]:
    """The entries of a model's config that describe the task's labels, kept in every exported model."""
    if task.problem == "language_model":
        return {}
    names = ("start", "end") if task.problem == "span" else task.label_names or ("score",)
    return {
        "problem_type": PROBLEM_TYPE.get(task.problem),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def load_for_training(source: str | Path, task: Task, tokenizer: Any) -> Any:
    """A model to fine-tune on the task; its head is made anew where the checkpoint has none that fits."""
    model, _ = _load_model(source, task.problem, ignore_mismatched_sizes=True, **label_config(task))
    _use_padding(source, model, tokenizer)
    return model


def load_fine_tuned(source: str | Path, task: Task | None = None) -> Any:
    """A model whose head has been trained, for that task where one is given: a teacher, or a model to evaluate."""
    problem = task.problem if task else problem_of(load_config(source))
    model, missing = _load_model(source, problem)
    saved = _saved_head(model.config)
    if saved in _ANSWERS and saved != head_of(type(model).__name__):  # BERT's heads of texts and tokens are named alike
        missing = missing or [f"its head is for {saved}"]
    if missing:
        raise _no_head(source, missing, task)
    if task is not None and task.label_names:
        _check_labels(source, model.config, task)
    if family_of(model).causal:
        _use_padding(source, model, load_tokenizer(source))
    return model


def load_teacher(source: str | Path, task: Task) -> tuple[Any, ModelError | None]:
    """A teacher, and what is to be said if its predictions are needed although its head was never trained.

    A teacher of plain text need not have a head: many methods compare hidden states alone.
    """
    if task.problem != "language_model":
        return load_fine_tuned(source, task), None
    model, missing = _load_model(source, task.problem)
    if family_of(model).causal:
        _use_padding(source, model, load_tokenizer(source))
    return model, _no_head(source, missing, task) if missing else None


def _use_padding(source: str | Path, model: Any, tokenizer: Any) -> None:
    """The classifier of a decoder reads the last token that its config does not call padding."""
    known = model.get_input_embeddings().num_embeddings
    if tokenizer.pad_token_id >= known:
        raise ModelError(
            f"The padding token '{tokenizer.pad_token}' has the id {tokenizer.pad_token_id}, but {source} has "
            f"embeddings for {known:,} tokens only. Make room for it with model.resize_token_embeddings, or let "
            "another token pad, and save model and tokenizer again."
        )
    model.config.pad_token_id = tokenizer.pad_token_id


def _no_head(source: str | Path, missing: list[str], task: Task | None) -> ModelError:
    kinds = {"language_model": "language modelling", "tokens": "token classification", "span": "question answering"}
    kind = kinds.get(task.problem, "classification") if task is not None else "classification"
    return ModelError(
        f"{source} has no trained {kind} head (missing: {', '.join(missing[:3])}). "
        f"Fine-tune it first: limbeck finetune {task.name if task else 'TASK'} --model {source}"
    )


def check_head(source: str | Path, config: Any, task: Task) -> None:
    """An error if a model with this config does not answer what the task asks."""
    if (answers := problem_of(config)) != task.problem:
        raise ModelError(f"{source} answers a problem of the kind '{answers}', but {task.name} is '{task.problem}'.")
    if task.label_names:
        _check_labels(source, config, task)


def _check_labels(source: str | Path, config: Any, task: Task) -> None:
    if config.num_labels != task.num_labels:
        raise ModelError(
            f"{source} predicts {config.num_labels} labels, but {task.name} has {task.num_labels}: "
            f"it was fine-tuned for another task. Run: limbeck finetune {task.name} --model ..."
        )
    seen = tuple(config.id2label[index] for index in range(config.num_labels))
    generic = tuple(f"LABEL_{index}" for index in range(config.num_labels))
    if seen not in (generic, task.label_names):
        raise ModelError(
            f"{source} predicts the labels {', '.join(seen)}, but {task.name} has {', '.join(task.label_names)} in "
            f"this order: it was fine-tuned for another task. Run: limbeck finetune {task.name} --model ..."
        )


def check_same_tokenizer(student: Any, teacher: Any) -> None:
    """Both models read one batch, so a token id must mean the same to both."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs and student(_PROBE)["input_ids"] == teacher(_PROBE)["input_ids"]:
        return
    if ours != theirs:
        differ = sum(theirs.get(token) != index for token, index in ours.items())
        seen = f"{len(ours):,} and {len(theirs):,} tokens, {differ:,} of the student's are not the teacher's"
    else:
        seen = "the same vocabulary, but a sentence is split differently"
    raise ModelError(
        f"Student and teacher have different tokenizers ({seen}), so their features cannot be compared token by token. "
        "Build the student from the teacher (student.from=teacher), or choose a student with the teacher's tokenizer."
    )


def load_config(source: str | Path) -> Any:
    return _load(AutoConfig, resolve(source))


def depth_of(source: str | Path) -> int:
    """How many blocks a model has, from its config alone."""
    return int(load_config(source).num_hidden_layers)


def longest_input(model: Any) -> int:
    """How many tokens a model can read."""
    limit = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    if model.config.model_type in ("roberta", "xlm-roberta"):
        limit -= model.config.pad_token_id + 1  # their positions start after the padding id
    return int(limit)


def checked_length(max_length: int, model: Any) -> int:
    """A length that somebody asked for; more than the model reads is an error."""
    if max_length > (limit := longest_input(model)):
        raise RecipeError(
            f"task.max_length is {max_length}, but this {model.config.model_type} model reads at most {limit} tokens. "
            f"Set task.max_length={limit} or less; longer texts are then cut."
        )
    return max_length


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _load_model(source: str | Path, problem: Problem, **options: Any) -> tuple[Any, list[str]]:
    """The model, in float32 whatever the file holds (halves cannot be trained as they are), and what the file lacks."""
    folder = resolve(source)
    config = load_config(source)
    options |= {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    names = family_of(config).base_names
    if names:  # all weights as in the base model alone; transformers puts the name that this head gives it before them
        options["key_mapping"] = {rf"^{name}\.": "" for name in names}
    model, info = _load(model_class(problem, config), folder, **options)
    if names:
        vars(model).pop("_weight_conversions", None)  # else the model would be saved with the names turned back
    return model, sorted(info["missing_keys"])


def _load(loader: Any, source: str, **options: Any) -> Any:
    if not Path(source).is_dir():
        hub.use_cache_only_if_offline()
    try:
        # False, not absent: transformers would ask whether to run the code that it finds beside the weights
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError, StrictDataclassError, SafetensorError) as error:
        if Path(source).is_dir():
            seen = ", ".join(sorted(entry.name for entry in Path(source).iterdir())[:8]) or "nothing"
            raise ModelError(
                f"Cannot load {source}: {_first_line(error)} The folder holds: {seen}. A model folder needs "
                "config.json, model.safetensors and the tokenizer's files (pickled .bin weights are not read, and no "
                "code is run)."
            ) from error
        raise ModelError(
            f"Cannot load '{source}': there is no such folder here, and it could not be fetched from the hub "
            f"({hub.connection_problem() or _first_line(error)}). Check the name, "
            "or put config.json, model.safetensors and the tokenizer's files in a folder and give its path."
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
