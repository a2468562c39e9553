"""Run the demo cut short: the same steps with fewer of them."""

from __future__ import annotations

import pytest
from helpers.tiny_tables import sentences

from limbeck import demo
from limbeck.errors import DataError


@pytest.fixture()
def short(monkeypatch):
    for name in ("_SCRATCH_TRAIN", "_SCRATCH_STUDENT_TRAIN", "_PRETRAINED_TRAIN"):
        monkeypatch.setattr(demo, name, getattr(demo, name) | {"max_steps": 2})


def check(rows, metric):
    assert [row.method for row in rows] == ["ft", "ft", "kd", "cka", "shape", "fsd", "fcd", "ics"]
    assert {row.model for row in rows[1:]} == {"student"} and rows[0].model == "teacher"
    assert all(row.metric == metric and row.milliseconds > 0 and 0 <= row.score <= 1 for row in rows)
    # students of one architecture have one latency, and the teacher has its own
    assert len({row.milliseconds for row in rows[1:]}) == 1 and len({row.milliseconds for row in rows}) == 2
    assert all(row.parameters < rows[0].parameters and row.agreement.endswith("%") for row in rows[1:])


@pytest.mark.slow  # the same steps as below, on more data; "make demo" does them too
def test_on_the_generated_reviews(short, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_SIZE", 300)
    first, page = demo.run_demo(tmp_path)
    check(first, "accuracy")
    home = tmp_path / "reviews-scratch-s0"
    assert {path.name for path in home.iterdir()} == {
        "teacher",
        "tokenizer",
        "report.html",
        *(row.method for row in first[1:]),
    }
    assert page == home / "report.html" and "reviews" in page.read_text()
    # a second call shows the same runs instead of making them again
    before = (home / "kd" / "metrics.json").stat().st_mtime_ns
    again, _ = demo.run_demo(tmp_path)
    assert (home / "kd" / "metrics.json").stat().st_mtime_ns == before
    assert [row.score for row in again] == [row.score for row in first]


def test_on_a_glue_folder_with_a_model_of_ones_own(short, tmp_path, teacher_folder):
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    for name, count in (("train", 120), ("dev", 60)):
        rows = [f"{text}\t{int(label == 'positive')}" for text, label in sentences(count, seed=count)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    rows, _ = demo.run_demo(tmp_path / "out", task_dir=folder, model=str(teacher_folder))
    check(rows, "accuracy")
    with pytest.raises(DataError, match="must be a GLUE task's folder"):
        demo.run_demo(tmp_path / "out", task_dir=tmp_path)
