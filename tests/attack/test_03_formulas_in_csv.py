"""Write no CSV cell that a spreadsheet runs as a formula, unless that is asked for."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.fake_runs import make_run, make_study
from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoTokenizer

from limbeck.compare.tables import Cell, Table, render
from limbeck.report.folder import write_folder
from limbeck.tasks.writing import write_table

Command = Callable[..., tuple[int, str]]
EVIL = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", " =1", "-1.2 ± =1", "--1", "\uff1d1+1"]
PLAIN = ["kd", "-1.2", "+0.5", "-1.2 ± 0.3", "-0.50 to 1.20", "-1.2 ± 0.3†", "-3e-05", "-1,234", "-", "", "a=b", "-7%"]
SAID = "began like a formula"


def read(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def runs_a_formula(text: str) -> bool:
    return text.lstrip()[:1] in tuple("=+-@\uff1d") and text not in PLAIN


@pytest.mark.parametrize("text", EVIL)
def test_texts_like_formulas_get_an_apostrophe(tmp_path: Path, text: str) -> None:
    write_table(tmp_path / "t.csv", {text: [text, "kd"]})
    assert read(tmp_path / "t.csv") == [[f"'{text}"], [f"'{text}"], ["kd"]]


def test_numbers_and_plain_texts_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = {"text": PLAIN, "number": [-0.5] * len(PLAIN), "huge": [-math.inf] * len(PLAIN)}
    write_table(tmp_path / "t.csv", columns | {"evil": EVIL[:1] * len(PLAIN)})
    assert [row[:3] for row in read(tmp_path / "t.csv")[1:]] == [[text, "-0.5", "-inf"] for text in PLAIN]
    assert caplog.text.count(SAID) == 1 and f"{len(PLAIN)} cells" in caplog.text  # said once, of the others


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """Save a model whose labels are formulas."""
    folder = tmp_path_factory.mktemp("models") / "theirs"
    evil = tiny_model("bert", depth=2)
    evil.config.id2label = {0: EVIL[0], 1: EVIL[3]}
    evil.config.label2id = {EVIL[0]: 0, EVIL[3]: 1}
    evil.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


def test_predict_guards_labels_and_says_so(command: Command, model: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", sentences(12))
    code, said = command("predict", model, data, "--text", "text", "-o", "p.csv")
    assert code == 0 and said.count(SAID) == 1 and "12 cells" in said and "--raw-csv" in said
    rows = read(tmp_path / "p.csv")
    assert {row[0] for row in rows[1:]} <= {f"'{EVIL[0]}", f"'{EVIL[3]}"}
    assert not any(runs_a_formula(cell) for row in rows for cell in row)


def test_predict_leaves_them_where_that_is_asked_for(command: Command, model: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "new.csv", sentences(4))
    words = ["predict", model, data, "--text", "text", "-o"]
    code, said = command(*words, "p.csv", "--raw-csv")
    assert code == 0 and SAID not in said
    labels = [row[0] for row in read(tmp_path / "p.csv")[1:]]
    assert set(labels) <= {EVIL[0], EVIL[3]}
    for name in ("p.jsonl", "p.parquet"):
        code, said = command(*words, name)
        assert code == 0 and SAID not in said
    assert [json.loads(line)["prediction"] for line in Path("p.jsonl").read_text().splitlines()] == labels
    assert pq.read_table("p.parquet")["prediction"].to_pylist() == labels


@pytest.fixture()
def runs(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / str(seed), name, seed) for seed, name in enumerate((EVIL[0], EVIL[0], "@x"))]


@pytest.mark.parametrize("words", [["-o", "t.csv"], ["--format", "csv"], ["--format", "csv", "--details"]])
def test_compare_guards_names_of_methods(command: Command, runs: list[Path], words: list[str], tmp_path: Path) -> None:
    code, said = command("compare", *runs, *words)
    assert code == 0 and said.count(SAID) == 1 and "--raw-csv" in said
    text = (tmp_path / "t.csv").read_text() if "-o" in words else said
    assert f"'{EVIL[0]}" in text and "'@x" in text
    code, said = command("compare", *runs, *words, "--raw-csv")
    text = (tmp_path / "t.csv").read_text() if "-o" in words else said
    assert code == 0 and SAID not in said and EVIL[0] in text and f"'{EVIL[0]}" not in text


def test_a_table_with_differences_stays_as_it_is() -> None:
    rows = ((Cell("kd"), Cell("-1.2 ± 0.3", marks="†")), (Cell("-x"), Cell("-0.5 to 1.2")))
    text = render(Table("t", ("method", "=head"), rows), "csv")
    assert text == "method,'=head\nkd,-1.2 ± 0.3†\n'-x,-0.5 to 1.2\n"


def test_tables_of_analyses_and_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table("scores", ("method", "accuracy"), ((Cell(EVIL[0]), Cell("-1.00")),))
    write_folder([], [table], tmp_path)
    assert read(tmp_path / "scores.csv")[1] == [f"'{EVIL[0]}", "-1.00"]
    assert caplog.text.count(SAID) == 1 and EVIL[0].replace("|", r"\|") in (tmp_path / "scores.md").read_text()


def test_the_table_of_a_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from limbeck.cli.render import show_study

    make_study(tmp_path / "study", [{"label": "=1+1", "scores": [0.7, 0.8]}], baselines=[])
    show_study(tmp_path / "study")
    assert [row[0] for row in read(tmp_path / "study" / "table.csv")].count("'=1+1") == 1
    assert caplog.text.count(SAID) == 1 and "--raw-csv" in caplog.text
