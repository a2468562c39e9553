"""Load models and tokenizers from a run directory, a folder or the hub, and check that they fit together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig

from limbeck._internal import hub
from limbeck.errors import ModelError, RecipeError
from limbeck.models.families import family_of, positions_follow_padding, register_installed, why_not_shipped
from limbeck.models.finite import check_finite_weights
from limbeck.models.heads import (
    check_labels,
    has_labels_of,
    label_config,
    model_class,
    no_trained_head,
    other_saved_head,
    problem_of,
)
from limbeck.problems import Problem
from limbeck.protocols import Model, Tokenizer
from limbeck.runs.directory import RunDirectory
from limbeck.runs.files import read_mapping
from limbeck.tasks.task import Task

# the last two: a config.json whose values have other types than transformers expects
_NOT_LOADED = (OSError, ValueError, ImportError, StrictDataclassError, SafetensorError, AttributeError, TypeError)
_PROBE = "It's a probe: tokenizers must agree on Words, numbers (3.14) and naïve accents."


def resolve(source: str | Path) -> str:
    """Return where to load a model from: what a run directory holds, or ``source``, a folder or a name on the hub."""
    run = RunDirectory(Path(source))
    if run.student_config.is_file():
        return str(run.student)
    if run.recipe.is_file():
        raise ModelError(
            f"{source} is a run directory without a model: the run has not finished. Continue it with --resume."
        )
    return str(source)


def load_tokenizer(source: str | Path, **options: Any) -> Tokenizer:
    """Load the tokenizer saved with a model; decoders without a padding token pad with their end token.

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


def load_for_training(source: str | Path, task: Task, tokenizer: Tokenizer) -> tuple[Model, bool]:
    """Load a model to fine-tune on the task, and tell whether the checkpoint has a trained head for it.

    Where there is none that fits, the head is made anew.
    """
    model, missing = _load_model(source, task.problem, ignore_mismatched_sizes=True, **label_config(task))
    _use_padding(source, model, tokenizer)
    inside = f"{model.base_model_prefix}."
    trained = all(name.startswith(inside) for name in missing) and other_saved_head(model) is None
    return model, trained and has_labels_of(load_config(source), task) and _was_trained(source)


def _was_trained(source: str | Path) -> bool:
    """Tell whether a run's method trained the head; one that compares hidden states alone does not."""
    run = RunDirectory(Path(source))
    return not run.start.is_file() or bool(read_mapping(run.start).get("trained", True))


def load_fine_tuned(source: str | Path, task: Task | None = None) -> Model:
    """Load a model whose head has been trained, for that task where one is given: a teacher, or one to evaluate."""
    problem = task.problem if task else problem_of(load_config(source))
    model, missing = _load_model(source, problem)
    if other := other_saved_head(model):
        missing = missing or [f"its head is for {other}"]
    if missing:
        raise no_trained_head(source, missing, task)
    if task is not None and task.label_names:
        check_labels(source, model.config, task)
    if family_of(model).causal:
        _use_padding(source, model, load_tokenizer(source))
    return model


def load_teacher(source: str | Path, task: Task) -> tuple[Model, ModelError | None]:
    """Load a teacher, with the error to raise if its predictions are needed although its head was never trained.

    A teacher of plain text need not have a head: many methods compare hidden states alone.
    """
    if task.problem != "language_model":
        return load_fine_tuned(source, task), None
    model, missing = _load_model(source, task.problem)
    if family_of(model).causal:
        _use_padding(source, model, load_tokenizer(source))
    return model, no_trained_head(source, missing, task) if missing else None


def _use_padding(source: str | Path, model: Any, tokenizer: Tokenizer) -> None:
    # the classifier of a decoder reads the last token that its config does not call padding
    known = model.get_input_embeddings().num_embeddings
    if tokenizer.pad_token_id >= known:
        raise ModelError(
            f"The padding token '{tokenizer.pad_token}' has the id {tokenizer.pad_token_id}, but {source} has "
            f"embeddings for {known:,} tokens only. Make room for it with model.resize_token_embeddings, or let "
            "another token pad, and save model and tokenizer again."
        )
    model.config.pad_token_id = tokenizer.pad_token_id


def check_same_tokenizer(student: Tokenizer, teacher: Tokenizer) -> None:
    """Raise where a token id does not mean the same to both models, which read one batch."""
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
    """Load the config of a model, without its weights; one that asks for code from the hub is refused."""
    where = resolve(source)
    try:
        config = _load(AutoConfig, where)
    except ModelError as error:
        kind = _model_type(where)
        if kind and kind not in CONFIG_MAPPING:
            raise ModelError(f"Cannot load {source}: {why_not_shipped(kind)}") from error
        raise
    attention = str(config._attn_implementation or "")
    if "/" in attention:  # transformers would fetch it from there, and run it
        raise ModelError(
            f"The config of {source} asks for attention code from the hub ({attention}), and no code is run. "
            "Remove attn_implementation from its config.json."
        )
    return config


def _model_type(source: str) -> str:
    """Read what a model's config calls its family; empty where it does not say, or cannot be read."""
    try:
        values, _ = PreTrainedConfig.get_config_dict(source)
    except _NOT_LOADED:
        return ""
    return str(values.get("model_type") or "")


def depth_of(source: str | Path) -> int:
    """Count the blocks of a model, from its config alone."""
    return int(load_config(source).num_hidden_layers)


def longest_input(model: Any) -> int:
    """Return how many tokens a model can read."""
    limit = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    if positions_follow_padding(model.config):
        limit -= model.config.pad_token_id + 1
    return int(limit)


def checked_length(max_length: int, model: Any) -> int:
    """Return a length that somebody asked for; raise where it is more than the model reads."""
    if max_length > (limit := longest_input(model)):
        raise RecipeError(
            f"task.max_length is {max_length}, but this {model.config.model_type} model reads at most {limit} tokens. "
            f"Set task.max_length={limit} or less; longer texts are then cut."
        )
    return max_length


def count_parameters(model: Model | torch.nn.Module) -> int:
    """Count the parameters of a model or of a part of it."""
    return sum(parameter.numel() for parameter in model.parameters())


def _load_model(source: str | Path, problem: Problem, **options: Any) -> tuple[Any, list[str]]:
    """Load a model in float32 (halves cannot be trained as they are); return it and what the file lacks."""
    folder = resolve(source)
    config = load_config(source)
    options |= {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    names = family_of(config).base_names
    if names:  # all weights as in the base model alone; transformers puts the name that this head gives it before them
        options["key_mapping"] = {rf"^{name}\.": "" for name in names}
    model, info = _load(model_class(problem, config), folder, **options)
    if names:
        vars(model).pop("_weight_conversions", None)  # else the model would be saved with the names turned back
    check_finite_weights(source, model)
    return model, sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})


def _load(loader: Any, source: str, **options: Any) -> Any:
    register_installed()
    if not Path(source).is_dir():
        hub.use_cache_only_if_offline()
    try:
        # False, not absent: transformers would ask whether to run the code that it finds beside the weights
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except _NOT_LOADED as error:
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
