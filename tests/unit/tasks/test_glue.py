"""GLUE: every layout of its files, the hub, and files that are damaged."""

from __future__ import annotations

import inspect
import logging
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from limbeck.errors import DataError, RecipeError
from limbeck.tasks import TASKS, Task, describe, load_task

REAL = Path(__file__).parents[3].parent / "shared" / "data" / "glue"
NAMES = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]

RTE = "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tentailment\n1\tA.\tB.\tnot_entailment\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a task's folder inside a GLUE root; dev defaults to train. Returns the root."""

    def write(folder: str, train: str | bytes, dev: str | bytes | None = None, **others: str | bytes) -> str:
        (tmp_path / folder).mkdir()
        files = {"train": train, "dev_matched" if folder == "MNLI" else "dev": train if dev is None else dev, **others}
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else content.encode()
            (tmp_path / folder / f"{name}.tsv").write_bytes(raw)
        return str(tmp_path)

    return write


def message(name: str, root: str) -> str:
    with pytest.raises(DataError) as caught:
        load_task(f"glue/{name}", data_dir=root)
    return str(caught.value)


# Layouts


def test_rte_from_the_root_and_from_its_own_folder(write: Write) -> None:
    root = write("RTE", RTE, test="index\tsentence1\tsentence2\n0\tx\ty\n")
    for data_dir in (root, f"{root}/RTE", f"{root}/RTE/"):
        task = load_task("glue/rte", data_dir=data_dir)
        assert task.name == "glue/rte"
        assert list(task.splits) == ["train", "validation", "test"]
        assert task.split("train")[:] == {
            "id": [0, 1],
            "sentence1": ["It rains.", "A."],
            "sentence2": ["It is wet.", "B."],
            "label": [0, 1],
        }
        assert task.split("test").column_names == ["id", "sentence1", "sentence2"]
        assert task.split("validation").split == "validation"


def test_cola_without_and_with_header(write: Write) -> None:
    root = write("CoLA", "gj04\t1\t\t Fine. \ngj04\t0\t*\tNot fine\n", test="index\tsentence\n0\tWho?\n")
    task = load_task("glue/cola", data_dir=root)
    assert task.split("train")[:] == {"id": [0, 1], "sentence": [" Fine. ", "Not fine"], "label": [1, 0]}
    assert task.split("test")[:] == {"id": [0], "sentence": ["Who?"]}
    Path(root, "CoLA", "train.tsv").write_text("sentence\tlabel\nFine.\t1\n")
    assert load_task("glue/cola", data_dir=root).split("train")[:]["sentence"] == ["Fine."]


def test_mnli_official_columns_and_both_genres(write: Write) -> None:
    middle = "\t".join(["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence1", "sentence2"])
    train = f"{middle}\tlabel1\tgold_label\n0\tp\tq\tg\t( a )\tPre\tHyp\tneutral\tcontradiction\n"
    dev = f"{middle}\tlabel1\tlabel2\tgold_label\n" + "".join(
        f"{i}\tp\tq\tg\t( a )\tP{i}\tH{i}\tneutral\tneutral\t{label}\n"
        for i, label in enumerate(["entailment", "neutral", "contradiction"])
    )
    test = f"{middle}\n0\tp\tq\tg\t( a )\tP\tH\n"
    root = write("MNLI", train, dev, dev_mismatched=dev, test_matched=test, test_mismatched=test)
    task = load_task("glue/mnli", data_dir=root)
    assert list(task.splits) == ["train", "validation", "validation_mismatched", "test", "test_mismatched"]
    assert task.split("train")[0] == {"id": 0, "premise": "Pre", "hypothesis": "Hyp", "label": 2}
    assert task.split("validation_mismatched")["label"][:] == [0, 1, 2]
    assert task.label_names == ("entailment", "neutral", "contradiction")
    assert "label" not in task.split("test").column_names


def test_mnli_scores_the_mismatched_data_where_they_are_there(write: Write) -> None:
    rows = "index\tsentence1\tsentence2\tgold_label\n0\tA\tB\tneutral\n"
    root = write("MNLI", rows)
    assert load_task("glue/mnli", data_dir=root).dev_splits == ("validation",)
    Path(root, "MNLI", "dev_mismatched.tsv").write_text(rows)
    assert load_task("glue/mnli", data_dir=root).dev_splits == ("validation", "validation_mismatched")


@pytest.mark.parametrize(
    ("place", "content", "labels"),
    [
        ("diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n0\tP\tH\n", None),
        ("AX/AX.tsv", "index\tsentence1\tsentence2\n0\tP\tH\n", None),
        ("AX/diagnostic.tsv", "Logic\tPremise\tHypothesis\n\tP\tH\n", None),
        ("AX/test.tsv", "Logic\tPremise\tHypothesis\tLabel\n\tP\tH\tneutral\n", [1]),
        ("MNLI/diagnostic.tsv", "Premise\tHypothesis\tLabel\nP\tH\tcontradiction\n", [2]),
    ],
)
def test_the_diagnostic_set_of_mnli(
    write: Write, monkeypatch: pytest.MonkeyPatch, place: str, content: str, labels: list[int] | None
) -> None:
    root = Path(write("MNLI", "index\tsentence1\tsentence2\tgold_label\n0\tA\tB\tneutral\n"))
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text(content)
    monkeypatch.chdir(root / "MNLI")
    for data_dir in (str(root), str(root / "MNLI"), "."):  # beside MNLI, wherever that is seen from
        task = load_task("glue/mnli", data_dir=data_dir)
        expected = {"id": [0], "premise": ["P"], "hypothesis": ["H"]} | ({"label": labels} if labels else {})
        assert task.split("diagnostic")[:] == expected
        assert task.dev_splits == ("validation",)


def test_the_diagnostic_set_is_scored_by_mcc(write: Write) -> None:
    task = load_task("glue/mnli", data_dir=write("MNLI", "sentence1\tsentence2\tgold_label\nA\tB\tneutral\n"))
    labels, logits = [0, 1, 2, 0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    scores = {
        split: task.score(logits, datasets.Dataset.from_dict({"labels": labels}, split=datasets.NamedSplit(split)))
        for split in ("validation", "diagnostic")
    }
    # three rows of class 0 and one of 1 are predicted, 2, 1 and 1 are there; three are right
    covariance = 3 * 4 - (3 * 2 + 1 * 1)
    expected = covariance / ((16 - 9 - 1) * (16 - 4 - 1 - 1)) ** 0.5
    assert scores == {"validation": {"accuracy": 0.75}, "diagnostic": {"mcc": pytest.approx(expected)}}


def test_stray_quotes_are_data(write: Write) -> None:
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    root = write("MRPC", f'{header}1\t1\t2\t" He said so .\tHe said " so .\n0\t3\t4\tC\t"D"\n')
    train = load_task("glue/mrpc", data_dir=root).split("train")
    assert train["sentence1"][:] == ['" He said so .', "C"]
    assert train["sentence2"][:] == ['He said " so .', '"D"']


def test_qqp_is_unquoted_only_where_the_file_is_quoted(write: Write) -> None:
    quoted = QQP + '7\t1\t2\tPlain?\t"What is ""love""?"\t1\n8\t1\t2\t"Tab, no."\tB\t0\n'
    stray = QQP + '7\t1\t2\tSay "hi"?\t"What is ""love""?"\t1\n'
    task = load_task("glue/qqp", data_dir=write("QQP", stray, quoted))
    assert task.split("validation")["question2"][:] == ['What is "love"?', "B"]
    assert task.split("validation")["question1"][:] == ["Plain?", "Tab, no."]
    assert task.split("train")["question2"][:] == ['"What is ""love""?"']


def test_qqp_skips_damaged_rows_with_one_warning(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    train = QQP + "0\t1\t2\tA\tB\t1\n1\t1\t2\tbroken\nhere\tB\t0\n\n2\t1\t2\tC\tD\t0\n"
    task = load_task("glue/qqp", data_dir=write("QQP", train, QQP + "0\t1\t2\tA\tB\t1\n"))
    assert task.split("train")["question1"][:] == ["A", "C"]
    assert task.split("train")["id"][:] == [0, 4]  # ids stay the rows' positions in the file
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "3 damaged rows" in warnings[0] and "line 3" in warnings[0] and "train.tsv" in warnings[0]


def test_windows_line_endings_bom_and_unusual_characters(write: Write) -> None:
    text = "It\u2028rains\x0bhard.\x85"
    raw = b"\xef\xbb\xbf" + f"sentence\tlabel\r\n{text} \t1\r\nDry.\t0\r\n\r\n\r\n".encode()
    train = load_task("glue/sst2", data_dir=write("SST-2", raw)).split("train")
    assert train["sentence"][:] == [f"{text} ", "Dry."]  # trailing spaces are part of the text
    assert train["label"][:] == [1, 0]


def test_stsb_scores_and_missing_last_newline(write: Write) -> None:
    root = write("STS-B", "index\tsentence1\tsentence2\tscore\n0\tA\tB\t3.800\n1\tC\tD\t5")
    task = load_task("glue/stsb", data_dir=root)
    assert task.split("train")["label"][:] == [3.8, 5.0]
    assert (task.problem, task.num_labels, task.label_names) == ("regression", 1, ())


# Damage


def test_too_few_and_too_many_columns(write: Write) -> None:
    text = message("rte", write("RTE", RTE, RTE + "2\tC.\tentailment\n3\tC\tD\tentailment\n"))
    assert "dev.tsv, line 4: 3 columns were found, 4 expected" in text and "download" in text
    root = Path(write("QNLI", "index\tquestion\tsentence\tlabel\n0\ta\tb\tc\tentailment\n"))
    assert "train.tsv, line 2: 5 columns were found, 4 expected" in message("qnli", str(root))


def test_blank_line_in_the_middle(write: Write) -> None:
    assert "line 4: 1 columns" in message("rte", write("RTE", RTE + "\n2\tC\tD\tentailment\n"))


@pytest.mark.parametrize("tail", ["2\tThe last sente", "2\tC.\tD.\tnot_ent", "2\tC.\tD.\t"])
def test_cut_off_last_line(write: Write, tail: str) -> None:
    text = message("rte", write("RTE", RTE + tail))
    assert "train.tsv, line 4: the file looks cut off in its last line" in text
    assert "download it again" in text


def test_cut_off_qqp_is_not_taken_for_a_damaged_row(write: Write) -> None:
    assert "looks cut off" in message("qqp", write("QQP", QQP + "0\t1\t2\tA\tB\t1\n1\t1\t2\tHow do"))


@pytest.mark.parametrize(
    ("name", "folder", "content", "expected"),
    [
        ("rte", "RTE", RTE + "2\tC.\tD.\tneutral\n", "line 4: the label is 'neutral'"),
        ("sst2", "SST-2", "sentence\tlabel\nA\t2\n", "line 2: the label is '2', but must be '0' or '1'"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\nA\tB\thigh\n", "line 2: the label is 'high'"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\nA\tB\t7\n", "a number from 0 to 5"),
        ("stsb", "STS-B", "sentence1\tsentence2\tscore\nA\tB\tnan\n", "the label is 'nan'"),
    ],
)
def test_unknown_label(write: Write, name: str, folder: str, content: str, expected: str) -> None:
    assert expected in message(name, write(folder, content))


def test_missing_column_lists_what_is_there(write: Write) -> None:
    text = message("rte", write("RTE", "index\tsentence1\tsentence2\n0\tA\tB\n"))
    assert "no column 'label'" in text and "'index', 'sentence1', 'sentence2'" in text


def test_not_utf8(write: Write) -> None:
    text = message("sst2", write("SST-2", b"sentence\tlabel\nok\t1\ncaf\xe9\t1\n"))
    assert "train.tsv, line 3: byte 0xe9 is not UTF-8" in text


@pytest.mark.parametrize(("content", "expected"), [("", "is empty"), ("sentence\tlabel\n", "has no rows")])
def test_empty_file(write: Write, content: str, expected: str) -> None:
    assert expected in message("sst2", write("SST-2", content))


def test_missing_files_and_folders(write: Write, tmp_path: Path) -> None:
    root = write("SST-2", "sentence\tlabel\nA\t1\n")
    text = message("rte", root)
    assert f"{root}/RTE" in text and "task.data_dir" in text
    assert "CoLA/" in message("cola", f"{root}/SST-2")  # the same columns, but another task
    assert "were found" in message("rte", str(tmp_path / "nowhere"))
    (tmp_path / "SST-2" / "dev.tsv").rename(tmp_path / "SST-2" / "deev.tsv")
    text = message("sst2", root)
    assert "dev.tsv does not exist" in text and "'deev.tsv'" in text


# The hub


def hub_split(names: list[str] | None, labels: list[float], **texts: list[str]) -> datasets.Dataset:
    label = datasets.ClassLabel(names=names) if names else datasets.Value("float32")
    features = {**{name: datasets.Value("string") for name in texts}, "label": label, "idx": datasets.Value("int32")}
    columns = {**texts, "label": labels, "idx": [9 * i for i in range(len(labels))]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize("diagnostic", [True, False])
def test_hub_gives_the_same_shape_as_files(monkeypatch: pytest.MonkeyPatch, diagnostic: bool) -> None:
    names = ["entailment", "neutral", "contradiction"]
    calls = []

    def load_dataset(path: str, config: str, split: str | None = None) -> Any:
        calls.append((path, config, split))
        labelled = hub_split(names, [2, 0], premise=["a", "b"], hypothesis=["c", "d"])
        hidden = hub_split(names, [-1], premise=["a"], hypothesis=["c"])
        if config == "ax":
            if not diagnostic:
                raise ConnectionError("not cached")
            return hidden
        return datasets.DatasetDict(
            train=labelled,
            validation_matched=labelled,
            validation_mismatched=labelled,
            test_matched=hidden,
            test_mismatched=hidden,
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_task("glue/mnli")
    assert calls == [("nyu-mll/glue", "mnli", None), ("nyu-mll/glue", "ax", "test")]
    expected = ["train", "validation", "validation_mismatched", "test", "test_mismatched"]
    assert list(task.splits) == expected + ["diagnostic"] * diagnostic
    assert task.dev_splits == ("validation", "validation_mismatched")
    assert task.split("train")[:] == {"id": [0, 1], "premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0]}
    for split in ("test", "diagnostic")[: 1 + diagnostic]:
        assert task.split(split)[:] == {"id": [0], "premise": ["a"], "hypothesis": ["c"]}


def test_hub_regression_and_changed_label_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data = datasets.DatasetDict(train=hub_split(None, [2.5], sentence1=["a"], sentence2=["b"]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: data)
    assert load_task("glue/stsb").split("train")["label"][:] == [2.5]
    data["train"] = hub_split(["not_entailment", "entailment"], [1], sentence1=["a"], sentence2=["b"])
    with pytest.raises(DataError, match="labels"):
        load_task("glue/rte")


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach the Hub"), ValueError("no such config")])
def test_offline_says_which_files_to_put_where(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load_dataset(*_: str) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        load_task("glue/mnli")
    text = str(caught.value)
    assert str(error) in text and "nyu-mll/glue" in text
    assert "MNLI/train.tsv, MNLI/dev_matched.tsv" in text and "task.data_dir" in text


def test_offline_for_real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real library in its explicit offline mode, with nothing cached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DataError, match=r"RTE/train\.tsv, RTE/dev\.tsv"):
        load_task("glue/rte")


# The registry


def test_registry_schema_and_descriptions() -> None:
    assert [*TASKS][:9] == [f"glue/{name}" for name in NAMES]
    for name in NAMES:
        function = TASKS[f"glue/{name}"]
        assert list(inspect.signature(function).parameters) == ["data_dir"]
        assert typing.get_type_hints(function) == {"data_dir": str | None, "return": Task}
        assert describe(f"glue/{name}").startswith("GLUE ")
    assert "\n" not in describe("table") and "CSV" in describe("table")


def test_unknown_task_and_options() -> None:
    with pytest.raises(RecipeError, match=r"Unknown task 'glue/rtee'. Did you mean 'glue/rte'\? Run 'limbeck tasks'."):
        load_task("glue/rtee")
    with pytest.raises(RecipeError, match=r"'data_dirs'. Did you mean 'data_dir'\?"):
        load_task("glue/rte", data_dirs="x")
    with pytest.raises(RecipeError, match=r"needs task\.label"):
        load_task("table", text="text")


def test_unknown_split_lists_the_known_ones(write: Write) -> None:
    task = load_task("glue/rte", data_dir=write("RTE", RTE))
    with pytest.raises(DataError, match=r"no split 'test'. It has: train, validation\."):
        task.split("test")


# Scoring


def test_official_metrics_main_first(write: Write) -> None:
    expected = {
        "cola": ("mcc",),
        "sst2": ("accuracy",),
        "mrpc": ("accuracy", "f1"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("accuracy", "f1"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }
    from limbeck.tasks.glue import GLUE

    assert {name: spec.metrics for name, spec in GLUE.items()} == expected


def test_score_predictions_and_probabilities(write: Write) -> None:
    task = load_task("glue/rte", data_dir=write("RTE", RTE))
    logits = [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]
    assert task.predictions(logits).tolist() == [0, 1, 0]
    assert task.score(logits, {"labels": [0, 1, 1]}) == {"accuracy": pytest.approx(2 / 3)}
    assert task.probabilities(logits)[0].tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)


# Real files


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "sizes", "positive"),
    [  # rows of train, validation and test; share of label 1 in validation (STS-B: mean score)
        ("cola", (8551, 1043, 1063), 0.691),
        ("sst2", (67349, 872, 1821), 0.509),
        ("mrpc", (3668, 408, 1725), 0.684),
        ("stsb", (5749, 1500, 1379), 2.364),
        ("qqp", (9999, 5000), 0.366),
        ("mnli", (9999, 9815), 0.318),
        ("qnli", (9999, 5463), 0.505),
        ("rte", (2490, 277, 3000), 0.473),
        ("wnli", (635, 71, 146), 0.437),
    ],
)
def test_real_files(name: str, sizes: tuple[int, ...], positive: float) -> None:
    if not REAL.is_dir():
        pytest.skip(f"the real GLUE files are not in {REAL}")
    task = load_task(f"glue/{name}", data_dir=str(REAL))
    assert tuple(len(split) for split in task.splits.values()) == sizes
    for split in task.splits.values():
        assert split["id"][:] == list(range(len(split)))
    labels = task.split("validation")["label"][:]
    share = sum(labels) / len(labels) if name == "stsb" else Counter(labels)[1] / len(labels)
    assert share == pytest.approx(positive, abs=0.001)
    assert len(sizes) < 3 or "label" not in task.split("test").column_names
    if name == "qqp":  # its dev file is CSV-quoted
        assert not any('""' in text for text in task.split("validation")["question2"])
    if name == "wnli":
        assert task.score([[1.0, 0.0]] * 71, {"labels": labels})["accuracy"] == pytest.approx(0.5634, abs=1e-4)
