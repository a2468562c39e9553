"""Write the program in a model card, which uses an exported folder without limbeck."""

from __future__ import annotations

from pathlib import Path

from limbeck.problems import Problem
from limbeck.runtime.folder import ONNX_FILES
from limbeck.tasks.task import Task

_HEADS: dict[Problem, str] = {"tokens": "TokenClassification", "span": "QuestionAnswering"}
# what is done with the logits of the first text
_ANSWERS: dict[Problem, str] = {
    "classification": "print(labels[int(logits[0].argmax())])",
    "regression": "print(logits[0, 0].item())",
    "multi_label": "print([labels[i] for i, logit in enumerate(logits[0]) if logit > 0])",
    "tokens": "print([labels[int(i)] for i in logits[0].argmax(-1)])  # of each token",
    "span": 'print(tokenizer.decode(batch["input_ids"][0][int(starts[0].argmax()) : int(ends[0].argmax()) + 1]))',
}


def usage(form: str, task: Task) -> str:
    """Return a code block that runs in the model's folder."""
    texts = '["a text"], ["its second text"]' if len(task.text_columns) == 2 else '["a text"]'
    if task.problem == "span":
        texts = '["a question"], ["the text that may hold its answer"]'
    named = [] if task.problem in ("span", "regression") else ["labels = config.id2label"]
    lines = _hf(task.problem, texts) if form == "hf" else _onnx(task.problem, texts, ONNX_FILES[form])
    return "\n".join(["```python", *lines[:-2], *named, *lines[-2:], _ANSWERS[task.problem], "```"])


def _hf(problem: Problem, texts: str) -> list[str]:
    head = f"AutoModelFor{_HEADS.get(problem, 'SequenceClassification')}"
    outputs = "starts, ends = output.start_logits, output.end_logits" if problem == "span" else "logits = output.logits"
    return [
        f"from transformers import {head}, AutoTokenizer",
        "",
        'folder = "."  # where this card is',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {head}.from_pretrained(folder).eval()",
        "config = model.config",
        f'batch = tokenizer({texts}, padding=True, truncation=True, return_tensors="pt")',
        "output = model(**batch)",
        outputs,
    ]


def _onnx(problem: Problem, texts: str, file: Path) -> list[str]:
    return [
        "import onnxruntime",
        "from transformers import AutoConfig, AutoTokenizer",
        "",
        'folder = "."  # where this card is',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "config = AutoConfig.from_pretrained(folder)",
        f'session = onnxruntime.InferenceSession(f"{{folder}}/{file.as_posix()}")',
        f'batch = tokenizer({texts}, padding=True, truncation=True, return_tensors="np")',
        "inputs = {node.name: batch[node.name] for node in session.get_inputs()}",
        "starts, ends = session.run(None, inputs)" if problem == "span" else "logits = session.run(None, inputs)[0]",
    ]
