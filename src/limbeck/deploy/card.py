"""Write the model card: what a folder holds, in words and in the form that the hub reads. Every figure was measured."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck import __version__
from limbeck._internal.files import readable_size
from limbeck.compare.score_table import readable_count
from limbeck.deploy.card_code import usage
from limbeck.deploy.parity import Parity
from limbeck.deploy.provenance import Provenance
from limbeck.errors import LimbeckError
from limbeck.inference.served import Served
from limbeck.methods import find_method
from limbeck.metrics import readable_score
from limbeck.problems import Problem
from limbeck.runtime.folder import CARD_FILE
from limbeck.stats import summary
from limbeck.tasks.task import Task

_PIPELINES: dict[Problem, str] = {"tokens": "token-classification", "span": "question-answering"}
_KINDS: dict[Problem, str] = {
    "classification": "text classification",
    "regression": "scoring texts with a number",
    "multi_label": "multi-label text classification",
    "tokens": "tagging words",
    "span": "finding answers in texts",
}
# names of the hub, where they are others
_METRICS = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr", "entity_f1": "f1"}
_METRICS |= {"macro_f1": "f1", "micro_f1": "f1", "token_accuracy": "accuracy"}
_SQUAD = {"squad/1.1": "rajpurkar/squad", "squad/2.0": "rajpurkar/squad_v2"}
_MOST_LABELS = 30
_TRAINING = ("batch_size", "learning_rate")


@dataclass(frozen=True)
class Latency:
    """Hold the median milliseconds of one text; ``before`` is of the model as it was trained, where it is another."""

    milliseconds: float
    before: float | None
    tokens: int
    threads: int
    processor: str
    parameters_before: int


def write_card(
    folder: Path,
    name: str,
    task: Task,
    provenance: Provenance,
    parity: Parity,
    served: Served,
    latency: Latency,
    licence: str | None,
) -> None:
    """Write the card of an exported model into its folder."""
    parts = [
        f"---\n{_front_matter(name, task, provenance, parity, licence)}\n---",
        f"# {name}",
        _introduction(task, provenance, served),
        "## Scores\n\n" + _scores(provenance, parity),
        "## Size and speed\n\n" + _cost(provenance, served, latency),
        "## Use\n\n" + usage(parity.form, task),
        "## How it was made\n\n" + _origin_and_training(task, provenance, parity, served),
        "## Limits\n\n" + _limits(provenance, served, licence),
    ]
    (folder / CARD_FILE).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _front_matter(name: str, task: Task, provenance: Provenance, parity: Parity, licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    pipeline = _PIPELINES.get(task.problem, "text-classification")
    data_set, config = _data_set(task.name)
    # a model that was changed after training has the score that the check has found
    as_trained = provenance.run is not None and not _change(parity)
    scores = provenance.run.scores if provenance.run and as_trained else {parity.metric: parity.after}
    results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=data_set or task.name,
            dataset_name=task.name,
            dataset_config=config,
            dataset_split=parity.split,
            metric_type=_METRICS.get(metric, metric),
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in scores.items()
    ]
    onnx = [] if parity.form == "hf" else ["onnx"]
    data = ModelCardData(
        model_name=name,
        language="en" if data_set else None,
        license=licence,
        library_name="onnx" if onnx else "transformers",
        pipeline_tag=pipeline,
        base_model=provenance.origin.name if provenance.origin.on_hub else None,
        datasets=[data_set] if data_set else None,
        metrics=list(dict.fromkeys(_METRICS.get(metric, metric) for metric in scores)),
        tags=["limbeck", *(["knowledge-distillation"] if provenance.teacher else []), *onnx],
        eval_results=results,
    )
    text: str = data.to_yaml()
    return text


def _data_set(task: str) -> tuple[str | None, str | None]:
    """Return a data set's name on the hub and its part; None for one's own data."""
    if task.startswith("glue/"):
        return "nyu-mll/glue", task.removeprefix("glue/")
    return _SQUAD.get(task), None


def _introduction(task: Task, provenance: Provenance, served: Served) -> str:
    kind = served.config.model_type
    made = f"A {kind} model with {served.config.num_hidden_layers} layers for {_KINDS[task.problem]} ({task.name})"
    if provenance.run is None:
        return f"{made}, made from {provenance.origin.name}."
    if provenance.teacher is None:
        return f"{made}, fine-tuned from {provenance.origin.name}."
    teacher, method = provenance.teacher.name, provenance.run.method
    return f"{made}, distilled from a teacher ({teacher}, fine-tuned) by the method `{method}`."


def _scores(provenance: Provenance, parity: Parity) -> str:
    run = provenance.run
    if run is None:
        return (
            f"| | {parity.metric} |\n|---|---:|\n| this model | {readable_score(parity.metric, parity.after)} |\n\n"
            f"- {parity.describe()}\n- How it was trained is not known here."
        )
    ours = f"before {change}" if (change := _change(parity)) else "this model"
    rows = {ours: run.scores, "its teacher": run.teacher_scores, "majority class": run.majority}
    lines = [f"| | {' | '.join(run.scores)} |", "|---|" + "---:|" * len(run.scores)]
    lines += [
        f"| {who} | {' | '.join(readable_score(name, found[name]) if name in found else '' for name in run.scores)} |"
        for who, found in rows.items()
        if found
    ]
    metric = next(iter(run.scores))
    examples = f" ({run.examples:,} examples)" if run.examples is not None else ""
    notes = [f"On the validation data of {run.task}{examples}; shares in percent.", _deviation(provenance, metric)]
    if provenance.interval is not None:
        low, high = (readable_score(metric, value) for value in provenance.interval)
        notes.append(f"Other examples would give other scores: 95% of bootstrap draws give {metric} {low} to {high}.")
    made = "loaded from this folder by plain transformers" if parity.form == "hf" else f"converted to {parity.form}"
    notes.append(f"These are the scores after training. Then the model was {made}. {parity.describe()}")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _change(parity: Parity) -> str:
    """Name what was done to the model after training that may change its answers; empty where nothing was."""
    changes = ["quantisation"] * (parity.form == "onnx-int8") + ["trimming its vocabulary"] * bool(parity.vocabulary)
    return " and ".join(changes)


def _deviation(provenance: Provenance, metric: str) -> str:
    assert provenance.run is not None
    seeds = ", ".join(str(one.seed) for one in provenance.seeds)
    if len(provenance.seeds) < 2:
        return f"One seed ({seeds}): how much scores differ between seeds is not known."
    found = summary([one.scores[metric] for one in provenance.seeds])
    assert found.sd is not None
    return (
        f"Over {found.count} seeds ({seeds}), {metric} is {readable_score(metric, found.mean)} ± "
        f"{readable_score(metric, found.sd)} "
        f"(mean and standard deviation); this model is seed {provenance.run.seed}."
    )


def _cost(provenance: Provenance, served: Served, latency: Latency) -> str:
    lines = ["| | parameters | weights on disk | one text |", "|---|---:|---:|---:|"]
    size, milliseconds = readable_size(served.disk_bytes), f"{latency.milliseconds:.2f} ms"
    lines.append(f"| this model | {readable_count(served.parameters)} | {size} | {milliseconds} |")
    if latency.before is not None:
        lines.append(
            f"| as it was trained (PyTorch) | {readable_count(latency.parameters_before)} | | {latency.before:.2f} ms |"
        )
    if provenance.run is not None and provenance.run.teacher_parameters is not None:
        lines.append(f"| its teacher | {readable_count(provenance.run.teacher_parameters)} | | |")
    plural = "s" * (latency.threads != 1)
    note = (
        f"Median time of one text of {latency.tokens} tokens on {latency.processor}, {latency.threads} thread{plural}."
    )
    return "\n".join([*lines, "", f"- {note}"])


def _origin_and_training(task: Task, provenance: Provenance, parity: Parity, served: Served) -> str:
    origin = provenance.origin.name
    if provenance.keep:
        origin = f"the layers `{provenance.keep}` of {origin}"
    lines = [f"Started from: {origin}.", f"Task: {task.name}, {_KINDS[task.problem]}."]
    if task.label_names and len(task.label_names) <= _MOST_LABELS:
        lines.append(f"Labels: {', '.join(task.label_names)}.")
    elif task.label_names:
        lines.append(f"Labels: {len(task.label_names)}, in the config.")
    if provenance.run is not None:
        method = provenance.last_stage.get("method") or {}
        settings = {name: value for name, value in method.items() if name != "name" and _is_public(value)}
        lines.append(f"Method: `{provenance.run.method}`{_listed(settings)}.")
        train = provenance.last_stage.get("train") or {}
        ends = "max_steps" if train.get("max_steps", -1) > 0 else "epochs"
        shown_settings = {name: train[name] for name in (ends, *_TRAINING) if name in train}
        lines.append(f"Training: seed {provenance.run.seed}{_listed(shown_settings)}.")
        if citation := _citation(provenance.run.method):
            lines.append(f"Reference: {citation}")
    if pieces := _pieces(provenance, parity):
        lines.append(f"Vocabulary: {pieces}.")
    lines.append(f"Texts are cut at {served.tokenizer.model_max_length} tokens.")
    lines.append(f"Exported by limbeck {__version__}.")
    return "\n".join(f"- {line}" for line in lines)


def _pieces(provenance: Provenance, parity: Parity) -> str:
    """Say how many pieces of its vocabulary were kept, by this export or by the training; empty where all were."""
    if parity.vocabulary is not None:
        kept, whole = parity.vocabulary.kept, parity.vocabulary.of
    elif provenance.run is not None and (found := provenance.run.directory.metrics().get("vocabulary")):
        kept, whole = found["kept"], found["of"]
    else:
        return ""
    return f"{kept:,} of {whole:,} pieces: those of the training texts and all characters, which spell other words"


def _is_public(value: Any) -> bool:
    """Tell whether a setting can be published: a text with a slash may be a path of somebody's machine."""
    return not re.search(r"[/\\~]", str(value))


def _listed(settings: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in settings.items())


def _citation(method: str) -> str:
    """Return the citation in a method's docstring; empty for one's own method that is not there any more."""
    try:
        text = inspect.getdoc(find_method(method)) or ""
    except LimbeckError:
        return ""
    found = re.search(r"^Citation: (.+?)(\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _limits(provenance: Provenance, served: Served, licence: str | None) -> str:
    lines = [
        "The scores hold for texts like the validation data. On other domains or languages it was not measured.",
        "It may repeat what is wrong or unfair in its training data and in the model it was made from.",
    ]
    if served.form == "onnx-int8":
        lines.append("Its weights have 8 bits: single predictions may differ from those of the trained model.")
    if licence is None:
        lines.append("No licence was stated. That of the data and of the model it was made from may restrict its use.")
    return "\n".join(f"- {line}" for line in lines)
