"""Write a trained model for use without limbeck, and refuse to where it would answer otherwise."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from limbeck import __version__
from limbeck._internal.files import expand_home, replacing_folder, restore_folder
from limbeck._internal.machine import disk_full
from limbeck.deploy.card import Latency, write_card
from limbeck.deploy.compact import count_uses
from limbeck.deploy.onnx import write_onnx
from limbeck.deploy.parity import ExampleLogits, Parity
from limbeck.deploy.provenance import read_provenance
from limbeck.errors import ExportError, ModelError, RecipeError, RunError, unknown
from limbeck.inference.doubts import find_doubts, majority_of
from limbeck.inference.evaluate import check_same_data, input_length, task_block_for
from limbeck.inference.latency import Timing, processor_name, time_in_turns
from limbeck.inference.logits import LogitsFunction, logits_in_order
from limbeck.inference.predict import InputSpec
from limbeck.inference.served import EXPORT_FORMS, Served, TorchServed, load_served
from limbeck.models.capture import logits_of
from limbeck.models.families import family_of
from limbeck.models.heads import model_class
from limbeck.models.loading import load_for_training, load_tokenizer
from limbeck.models.trimmed_tokenizer import kept_by, trim_tokenizer
from limbeck.models.trimming import TrimmedVocabulary, restore_vocabulary, trim_vocabulary
from limbeck.recipes.recipe import TaskBlock, load_task_block
from limbeck.runtime.folder import ONNX_FILES, PARITY_FILE, find_onnx
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

_VOCABULARIES = ("whole", "trimmed", "compact")
_SECONDS = 1.0  # that are spent on timing
_BATCH_SIZE = 32


@dataclass(frozen=True)
class Exported:
    """Point to an exported model, with how it answers beside the original."""

    path: Path
    form: str
    parity: Parity


def export(
    model: str | Path,
    to: str,
    output: str | Path,
    *,
    task: str | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    licence: str | None = None,
    siblings: Sequence[str | Path] = (),
    examples: int = 512,
    max_drop: float = 0.01,
    vocabulary: str = "whole",
    pieces_of: str | Path | None = None,
    force: bool = False,
) -> Exported:
    """Write ``model`` to the folder ``output`` as ``hf``, ``onnx`` or ``onnx-int8``, with a model card.

    A run directory knows its task; for another model, ``task`` is its name (or a recipe's task block). Both models
    answer up to ``examples`` of the task's validation data; where the answers differ by more than their form explains,
    or the main metric drops by more than ``max_drop``, nothing is written. ``siblings`` are runs of the same setting
    with other seeds: the card then has a deviation. ``vocabulary="trimmed"`` keeps only the pieces of the task's
    training texts; ``"compact"``, for ``onnx-int8``, keeps all, those that these texts use least in few bytes.
    ``pieces_of`` is the model that a trimmed one was made from, and gives it all of its pieces back. ``force`` replaces
    an earlier export.
    """
    if to not in EXPORT_FORMS:
        raise RecipeError(unknown("form", to, EXPORT_FORMS, f"There are {', '.join(EXPORT_FORMS)}."))
    if vocabulary not in _VOCABULARIES:
        raise RecipeError(unknown("vocabulary", vocabulary, _VOCABULARIES, f"There are {', '.join(_VOCABULARIES)}."))
    if vocabulary == "compact" and to != "onnx-int8":
        raise RecipeError(f"A compact vocabulary is a form of onnx-int8, not of {to}. Leave it whole, or trim it.")
    # where it is now: links stay, and "." may be the folder that is replaced
    folder_to_write = expand_home(output).resolve()
    check = partial(_check_output, folder_to_write, force, [model, *siblings])
    restore_folder(folder_to_write)
    check()
    block = (
        load_task_block(dict(task), overrides) if isinstance(task, Mapping) else task_block_for(model, task, overrides)
    )
    loaded = load_task(block.name, **block.options)
    if loaded.scored_by_loss:
        raise RecipeError(
            f"{model} is a language model: it gives no answers that an export could be checked by. "
            "Fine-tune it on a task first; the folder 'student' of its run is a Hugging Face folder already."
        )
    if not isinstance(task, str):
        check_same_data(model, loaded)
    provenance = read_provenance(model, siblings).for_task(loaded.name)
    source = TorchServed(model, loaded)
    if pieces_of is not None:
        _restore_pieces(source, pieces_of, loaded)
    length = input_length(block, loaded, source.tokenizer, source)
    tokenizer_of = model if pieces_of is None else pieces_of
    uses = None
    if vocabulary == "compact":
        pieces = len(source.model.get_input_embeddings().weight)
        uses = count_uses(source.tokenizer, loaded.all_texts("train"), pieces)
    trimmed: TrimmedVocabulary | None = None
    if vocabulary == "trimmed":
        trimmed = trim_vocabulary(source.model, source.tokenizer, loaded.all_texts("train"))
    split = loaded.dev_splits[0]
    sample = _sample(loaded, split, examples)
    before = _predict_examples(source.logits, source.tokenizer, sample, split, length, str(model))
    scores = sample.score(before.logits, before.encoded)
    find_doubts(model, source.config, loaded, scores, majority_of(loaded, before.encoded)).warn()
    with _full_disk_explained(folder_to_write), replacing_folder(folder_to_write, check=check) as folder:
        tokenizer = _standalone_tokenizer(source, tokenizer_of, length)
        _write(source, tokenizer, to, folder, trimmed, uses)
        answering = _load_without_limbeck(folder, loaded)
        after = _predict_examples(*answering, sample, split, length, f"The export of {model} to {to}")
        parity = Parity.of(to, sample, split, before, after, max_drop, trimmed)
        _require_parity(parity)
        served = load_served(folder)
        latency = _latency(source, served, after, trimmed)
        _write_parity(folder, parity, block, length, served, latency)
        write_card(folder, folder_to_write.name, loaded, provenance, parity, served, latency, licence)
    return Exported(Path(output), to, parity)


def _check_output(output: Path, force: bool, sources: Sequence[str | Path]) -> None:
    """Raise where an export may not be put; asked before the work, and again before an older export makes room."""
    for source in sources:
        read = expand_home(source).resolve()
        if read.exists() and read.is_relative_to(output):
            raise RunError(f"{output} is or holds {source}, which is read here. Choose another --output.")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not force:
        raise RunError(f"{output} exists. Choose another --output, or add --force to replace an earlier export.")
    if not (output / PARITY_FILE).is_file():
        raise RunError(f"{output} is no earlier export (it has no {PARITY_FILE}), so it is not replaced. Remove it.")


@contextmanager
def _full_disk_explained(output: Path) -> Iterator[None]:
    """Turn what libraries say about a full disk into the system's own error; what else they say stays."""
    try:
        yield
    except Exception as error:
        if not disk_full(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output)) from error


def _sample(task: Task, split: str, examples: int) -> Task:
    """Return the task with at most so many examples of a split, evenly spaced."""
    data = task.split(split)
    rows = np.unique(np.linspace(0, len(data) - 1, min(examples, len(data))).round().astype(int))
    return dataclasses.replace(task, splits={split: data.select(rows)})


def _predict_examples(
    answer: LogitsFunction, tokenizer: Any, task: Task, split: str, length: int, who: str
) -> ExampleLogits:
    encoded = task.encode(split, tokenizer, length)
    collate = Collator(tokenizer, problem=task.problem)
    return ExampleLogits(logits_in_order(answer, encoded, collate, _BATCH_SIZE, "check the export", who), encoded)


def _restore_pieces(source: TorchServed, pieces_of: str | Path, task: Task) -> None:
    """Give a model that was trimmed all pieces of the model that it was made from, and that one's tokenizer."""
    whole = load_tokenizer(pieces_of)
    if source.tokenizer.get_vocab() == whole.get_vocab():
        return
    kept = kept_by(source.tokenizer, whole)
    if kept is None:
        raise ModelError(
            f"The vocabulary of {source.name} ({len(source.tokenizer):,} pieces) is not a part of that of {pieces_of} "
            f"({len(whole):,}), so it cannot be restored. Name the model that it was trimmed from."
        )
    pre_trained, _ = load_for_training(pieces_of, task, whole)
    source.use(restore_vocabulary(source.model, kept, pre_trained), whole)


def _write(
    source: TorchServed, tokenizer: Any, to: str, folder: Path, trimmed: TrimmedVocabulary | None, uses: Any
) -> None:
    network: Any = source.model
    if trimmed is not None:
        tokenizer, network = trim_tokenizer(tokenizer, trimmed.kept), trimmed.model
    tokenizer.save_pretrained(folder)
    if to == "hf":
        network.save_pretrained(folder)
        return
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)
    _write_special_tokens(tokenizer, folder)
    write_onnx(network, tokenizer.model_input_names, folder / ONNX_FILES[to], to, uses)


def _write_special_tokens(tokenizer: Any, folder: Path) -> None:
    """Write the file that other run times of ONNX models read, and transformers does not write any more."""
    names = json.dumps(tokenizer.special_tokens_map, indent=2)
    (folder / "special_tokens_map.json").write_text(names + "\n", encoding="utf-8")


def _standalone_tokenizer(source: TorchServed, model: str | Path, length: int) -> Any:
    """Load the tokenizer so that whatever it returns can be given to the model as it is.

    It cuts where training did, makes segment ids only for models that have segments (GPT-2 would take them for words),
    and pads decoders on the right, where padding is seen by no token and moves none.
    """
    names = ["input_ids", "attention_mask"]
    segments = (getattr(source.config, "type_vocab_size", 0) or 0) > 1
    if segments and "token_type_ids" in source.tokenizer.model_input_names:
        names.insert(1, "token_type_ids")
    options: dict[str, Any] = {"model_max_length": length, "model_input_names": names}
    if family_of(source.model).causal:
        options["padding_side"] = "right"
    return load_tokenizer(model, **options)


def _load_without_limbeck(folder: Path, task: Task) -> tuple[LogitsFunction, Any]:
    """Load an exported model and its tokenizer as anybody without limbeck would."""
    if find_onnx(folder) is not None:
        served = load_served(folder)
        return served.logits, served.tokenizer
    plain: dict[str, Any] = {"trust_remote_code": False}  # not absent, which would ask whether to run code
    tokenizer = AutoTokenizer.from_pretrained(folder, **plain)
    config = AutoConfig.from_pretrained(folder, **plain)
    model = model_class(task.problem, config).from_pretrained(folder, **plain).eval()

    def answer(batch: Mapping[str, Tensor]) -> np.ndarray:
        with torch.inference_mode():
            output = model(**{name: batch[name] for name in tokenizer.model_input_names})
        logits: np.ndarray = logits_of(output).numpy()
        return logits

    return answer, tokenizer


def _require_parity(parity: Parity) -> None:
    failures = parity.failures()
    if failures:
        remedy = {
            "onnx-int8": "Allow more with --max-drop, check on more data with --examples, or export to onnx.",
            "onnx": "Other versions of torch and onnxscript may convert it rightly; '--to hf' needs no conversion.",
            "hf": "Please report this, with the output of 'limbeck doctor'.",
        }
        advice = remedy[parity.form]
        if parity.vocabulary is not None:
            advice = "Keep all pieces (--vocabulary whole), or allow more with --max-drop."
        raise ExportError(
            f"The export to {parity.form} does not answer as the model did on {parity.examples:,} {parity.split} "
            f"examples of {parity.task}: {'; '.join(failures)}. Nothing was written. {advice}"
        )


def _latency(source: Served, served: Served, answered: ExampleLogits, trimmed: TrimmedVocabulary | None) -> Latency:
    """Time one text of middle length with the exported model, and with the trained form where it is another."""
    lengths = [len(ids) for ids in answered.encoded["input_ids"]]
    row = answered.encoded[int(np.argsort(lengths, kind="stable")[len(lengths) // 2])]
    kept = {name: row[name] for name in served.tokenizer.model_input_names}
    models = [served] if served.form == "torch" and trimmed is None else [served, source]
    ids = kept["input_ids"] if trimmed is None else [trimmed.kept[index] for index in kept["input_ids"]]
    rows = [kept, kept | {"input_ids": ids}]
    batches = [Collator(one.tokenizer)([row]) for one, row in zip(models, rows, strict=False)]
    calls = [lambda one=one, batch=batch: one.logits(batch) for one, batch in zip(models, batches, strict=True)]
    timings = [Timing.of(seconds, 1).p50_ms for seconds in time_in_turns(calls, _SECONDS)]
    return Latency(
        milliseconds=timings[0],
        before=timings[1] if len(timings) > 1 else None,
        parameters_before=source.parameters,
        tokens=len(kept["input_ids"]),
        threads=torch.get_num_threads(),
        processor=processor_name(),
    )


def _write_parity(
    folder: Path, parity: Parity, block: TaskBlock, length: int, served: Served, latency: Latency
) -> None:
    spec = dataclasses.replace(InputSpec.of(block), max_length=length)
    about = parity.to_dict() | {
        "reads": spec.to_dict(),
        "parameters": served.parameters,
        "disk_bytes": served.disk_bytes,
        "latency": dataclasses.asdict(latency),
        "limbeck": __version__,
    }
    (folder / PARITY_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
