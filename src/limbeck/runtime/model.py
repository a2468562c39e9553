"""Ask an exported model: texts in, labels and probabilities out, by onnxruntime alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .answers import Answer, answers_of
from .errors import AnswerError, FolderError
from .folder import About, find_onnx, no_model, read_about, read_tokenizer
from .reading import Reader, Row, Text

CHUNK_TEXTS = 1_000  # that are read at a time, of which those of equal length share a batch
BATCH_SIZE = 32

Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]  # from padded token ids to logits


class Predictions(NamedTuple):
    """Hold the answers to texts, in their order; see :class:`Answer` for what they are of each problem.

    ``scores`` is an array (texts, labels) of probabilities for labels, and else a list with those of each text.
    """

    labels: list[Any]
    scores: Any


class Model:
    """Answer texts by an exported model. Several threads may ask it at the same time."""

    def __init__(self, about: About, reader: Reader, run: Run) -> None:
        self.about, self.reader, self._run = about, reader, run

    @property
    def depends_on_batch(self) -> bool:
        """Tell whether an answer depends on the other texts of its batch.

        int8 models scale activations by the largest of the whole batch.
        """
        return self.about.form == "onnx-int8"

    def predict(self, texts: Iterable[Text], batch_size: int = BATCH_SIZE) -> Predictions:
        """Answer texts, or pairs of them, as ``limbeck predict`` does with the same batch size."""
        answers = list(self._predict(list(texts), batch_size))
        labels, scores = [answer.label for answer in answers], [answer.scores for answer in answers]
        if self.about.problem in ("classification", "multi_label"):
            return Predictions(labels, np.array(scores, np.float32).reshape(len(scores), len(self.about.labels)))
        return Predictions(labels, scores)

    def _predict(self, texts: Sequence[Text], batch_size: int) -> Iterator[Answer]:
        for start in range(0, len(texts), CHUNK_TEXTS):
            chunk = texts[start : start + CHUNK_TEXTS]
            rows = self.reader.read(chunk)
            logits: dict[int, np.ndarray] = {}
            order = np.argsort([-len(row.ids) for row in rows], kind="stable").tolist()
            for first in range(0, len(order), batch_size):
                batch = order[first : first + batch_size]
                logits |= zip(batch, self.logits([rows[number] for number in batch]), strict=True)
            yield from self.answers(chunk, rows, [logits[number] for number in range(len(rows))])

    def logits(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Return the logits of rows that are computed as one batch: (labels,), or (tokens, labels) of each."""
        lengths = [len(row.ids) for row in rows]
        shape = len(rows), max(lengths)
        ids, mask = np.full(shape, self.about.pad, np.int64), np.zeros(shape, np.int64)
        segments = np.full(shape, self.about.segments, np.int64)
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            ids[place, :length], segments[place, :length], mask[place, :length] = row.ids, row.segments, 1
        logits = self._run({"input_ids": ids, "attention_mask": mask, "token_type_ids": segments})
        if logits.ndim == 3:
            return [values[:length] for values, length in zip(logits, lengths, strict=True)]
        return list(logits)

    def answers(self, texts: Sequence[Text], rows: Sequence[Row], logits: Sequence[np.ndarray]) -> list[Answer]:
        """Return the answer to each text from the logits of its rows."""
        for values in logits:
            if not np.isfinite(values).all():
                raise AnswerError(
                    f"{self.about.name} answers with {values[~np.isfinite(values)][0]}, which is no score of anything: "
                    "its weights are damaged. Export it again."
                )
        return answers_of(self.about, texts, rows, logits)


def load(folder: str | Path, threads: int | None = None) -> Model:
    """Load the ONNX model of a folder that ``limbeck export`` wrote.

    ``threads`` is how many compute one batch together; None leaves it to onnxruntime.
    """
    found = find_onnx(folder)
    if found is None:
        raise no_model(folder)
    about = read_about(folder, found[0])
    return Model(about, Reader(read_tokenizer(folder), about), _onnx_run(found[1], threads))


def _onnx_run(file: Path, threads: int | None) -> Run:
    session = open_session(file, threads)
    names = [node.name for node in session.get_inputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        outputs = session.run(None, {name: inputs[name] for name in names})
        found: np.ndarray = np.stack(outputs, axis=-1) if len(outputs) > 1 else outputs[0]
        return found

    return run


def open_session(file: Path, threads: int | None) -> Any:
    """Open an ONNX file on the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or 0, 1
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    # onnxruntime has an exception of its own for each way in which a file can be wrong
    except Exception as error:
        raise FolderError(f"{file} cannot be opened: {str(error).splitlines()[0]} Export the model again.") from error
