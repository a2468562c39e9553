"""Draw tables that are almost right: a few odd cells or columns, or a damaged file."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from hypothesis import strategies as st

from helpers.fuzzed_inputs import HOW_MANY, LONG, TEXTS, damaged
from helpers.tiny_tables import sentences

CELLS = [
    *TEXTS,
    1.5,
    math.nan,
    math.inf,
    None,
    True,
    10**30,
    [],
    ["a"],
    {"a": 1},
    "\0",
    "a,b",
    'a"b',
    "a\tb",
    "a\rb",
    -1,
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw the extension and the content of a table with a few odd cells or columns, or of one that was damaged."""
    rows = draw(st.sampled_from([24, 24, 24, 12, 2, 1, 0]))
    columns: list[tuple[str, list[Any]]] = [
        (name, [row[place] for row in sentences(rows)]) for place, name in enumerate(("text", "label"))
    ]
    kind = draw(st.sampled_from(["csv", "csv", "tsv", "jsonl", "jsonl", "parquet"]))
    for _ in range(draw(HOW_MANY)):
        change = draw(st.sampled_from(["cell", "cell", "cell", "column", "drop", "twice", "rename", "same"]))
        place = draw(st.integers(0, len(columns) - 1)) if columns else 0
        if not columns:
            break
        name, values = columns[place]
        if change == "cell" and values:
            values[draw(st.integers(0, len(values) - 1))] = draw(st.sampled_from(CELLS))
        elif change in ("column", "same"):
            several = [draw(st.sampled_from(CELLS)) for _ in range(1 if change == "same" else 3)]
            columns[place] = name, [several[row % len(several)] for row in range(len(values))]
        elif change == "drop":
            del columns[place]
        elif change == "twice":
            columns.append((name, list(values)))
        elif change == "rename":
            columns[place] = draw(st.sampled_from(["", " text ", "Text", "id", "label", "é", LONG])), values
    content = _written(columns, kind)
    if draw(st.integers(0, 2)) == 0:
        content = draw(damaged(content))
    ending = draw(st.sampled_from([kind] * 12 + ["csv", "jsonl", "parquet", "CSV", "json", "txt", "pkl"]))
    return ending, content


def _written(columns: list[tuple[str, list[Any]]], kind: str) -> bytes:
    rows = list(zip(*(values for _, values in columns), strict=True))
    if kind == "jsonl":
        names = [name for name, _ in columns]
        return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode()
    if kind == "parquet":
        return _parquet(columns)
    file = io.StringIO()
    if kind == "csv":
        csv.writer(file, lineterminator="\n").writerows([[name for name, _ in columns], *rows])
    else:
        file.writelines("\t".join(map(str, row)) + "\n" for row in [[name for name, _ in columns], *rows])
    return file.getvalue().encode("utf-8", "surrogatepass")


def _parquet(columns: list[tuple[str, list[Any]]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = []
    for _, values in columns:
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, OverflowError):  # its columns have one type each
            arrays.append(pa.array([None if value is None else str(value) for value in values]))
    file = io.BytesIO()
    pq.write_table(pa.table(arrays, names=[name for name, _ in columns]), file)
    return file.getvalue()
