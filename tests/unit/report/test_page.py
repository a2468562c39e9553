# ruff: noqa: RUF001 - the tables that are expected hold dashes and signs
"""Check the page and its tables: true numbers, valid and safe HTML, and what is said where something is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from statistics import fmean

import pytest
import yaml
from helpers.fake_records import (
    RELATIONS,
    SESSION,
    a_record,
    decided,
    environment,
    measured_run,
    measured_study,
    write_history,
)
from helpers.fake_runs import classes, make_run, make_runs, make_study

from limbeck.analysis.record import Record, write_record
from limbeck.compare.comparison import compare
from limbeck.compare.entries import read_entries
from limbeck.compare.tables import render
from limbeck.errors import DataError, MissingExtra, RunError
from limbeck.report.data import gather
from limbeck.report.figures import all_figures
from limbeck.report.page import write_report
from limbeck.report.summary import sentences, warning
from limbeck.report.tables import all_tables

HOSTILE = "<b>&\"'</td><script>alert(1)</script>"
SECTIONS = ("summary", "tradeoff", "curves", "analyses", "runs", "environment", "reproduce")
_VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Parse a page, with an error where it is not balanced."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.tags, self.cells, self.words = [], [], [], [], [], []
        self.attributes, self.headings = set(), []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), "an attribute twice"
        self.tags.append(tag)
        self.attributes |= set(values)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[name] for name in ("href", "src") if name in values]
        self.headings += [int(tag[1])] if tag in ("h1", "h2", "h3", "h4") else []
        if "data-task" in values:
            self.cells.append([values, ""])
        if tag not in _VOID:
            self.open.append((tag, values))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (self.open[-3:], tag)
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] != "style":
            self.words.append(data)
        if any("data-task" in values for _, values in self.open):
            self.cells[-1][1] += data

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def written(paths, folder, figures=None):
    file = folder / "out" / "report.html"
    write_report(paths, file, figures)
    assert [found.name for found in file.parent.iterdir()] == [file.name]
    return file.read_text(encoding="utf-8")


def table(folder, title):
    return next((found for found in all_tables(gather(read_entries([folder]))) if found.title == title), None)


def rows(found):
    return [[cell.text for cell in row] for row in found.rows]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "study"
    study = measured_study(folder, ["ft", HOSTILE, "fsd"], ["glue/rte"])
    results = json.loads((study / "results.json").read_text())
    (study / "results.json").write_text(json.dumps(results | {"study": f"all {HOSTILE}"}))
    return study


@pytest.fixture(scope="module")
def text(study, tmp_path_factory):
    return written([study], tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_whole_and_needs_nothing_else(page, text):
    assert text.startswith("<!DOCTYPE html>") and '<html lang="en">' in text and 'name="viewport"' in text
    assert len(page.ids) == len(set(page.ids))
    assert set(SECTIONS) <= set(page.ids)
    anchors = [link[1:] for link in page.links if link.startswith("#")]
    assert anchors and set(anchors) <= set(page.ids)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert not {"script", "iframe", "object", "embed", "link", "img"} & set(page.tags)
    assert not any(name.startswith("on") for name in page.attributes)
    assert "@import" not in text and "url(http" not in text
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert page.tags.count("table") == page.tags.count("caption") > 5
    assert page.tags.count("figure") == page.tags.count("svg") == page.tags.count("figcaption") >= 9


def test_scores_in_the_page_are_those_of_the_runs(study, page):
    found = read_entries([study])
    expected = compare(found).table
    texts = {row[0].text: row[2].text + row[2].marks for row in expected.rows}
    assert len(page.cells) == len(found.entries) == 3
    for values, shown in page.cells:
        runs = next(entry.runs for entry in found.entries if entry.label == values["data-label"])
        scores = [json.loads((run.path / "metrics.json").read_text())["metrics"]["accuracy"] for run in runs]
        assert (values["data-task"], values["data-metric"]) == ("glue/rte", "accuracy")
        assert float(values["data-value"]) == pytest.approx(fmean(scores), rel=1e-12)
        assert shown.strip() == texts[values["data-label"]]
    for note in expected.notes:
        assert " ".join(note.split()) in page.text


def test_labels_and_texts_are_escaped(page, text):
    assert "<script" not in text.lower() and "b" not in page.tags
    assert f"all {HOSTILE}" in page.text  # the title
    assert page.text.count(HOSTILE) > 10


def test_the_page_says_where_it_comes_from(study, page, text):
    assert str(study.parent) not in text and "/tmp" not in text
    assert "glue-rte-2-s1" in page.text and "12.5 s of training each" in page.text
    recipe = (study / "runs" / "glue-rte-0-s1" / "recipe.yaml").read_text()
    assert " ".join(recipe.split()) in page.text
    assert " ".join((study / "study.yaml").read_text().split()) in page.text
    assert "limbeck study study.yaml -o studies/study" in page.text
    assert "All runs had the same environment." in page.text and "torch" in page.text


def test_the_page_is_the_same_every_time(tmp_path):
    for run in make_runs(tmp_path / "runs", "kd", [0.7, 0.72]):
        write_history(run, {"task": 1.0})
    assert written([tmp_path / "runs"], tmp_path / "1") == written([tmp_path / "runs"], tmp_path / "2")


def test_a_page_about_runs_of_which_nothing_was_measured(tmp_path):
    make_runs(tmp_path / "runs", "kd", [0.7, 0.72])
    page = Page(written([tmp_path / "runs"], tmp_path))
    assert set(SECTIONS) <= set(page.ids) and page.tags.count("figure") == 1
    assert "Not measured: heat maps, layers, relation difference, intra-class similarity, tokens and cost." in page.text
    assert "limbeck analyze RUN..." in page.text
    assert "Not shown: restoration and calibration." in page.text
    assert "kept no environment.json" in page.text and "kept no log of their training" in page.text
    assert "limbeck distill recipe.yaml -o runs/kd-s1 limbeck distill recipe.yaml seed=2 -o runs/kd-s2" in page.text


def test_nine_tasks_and_twelve_methods(tmp_path):
    labels, tasks = [f"method {number}" for number in range(12)], [f"glue/t{number}" for number in range(9)]
    entries = [{"task": task, "label": label, "scores": [0.6]} for task in tasks for label in labels]
    study = make_study(tmp_path / "study", entries, baselines=[])
    for number, entry in enumerate(read_entries([study]).entries):
        write_record(entry.runs[0].path, Record({}, {**a_record(number).values, "sentences": []}, {}))
        if entry.task == "glue/t3":
            write_history(entry.runs[0].path, {"task": 1.0}, steps=10)
    page = Page(written([study], tmp_path))
    assert len(page.cells) == 9 * 12 and all("data-value" in values for values, _ in page.cells)
    # trade-off, relations and similarity of each; the curves of one task, diagonals and similarity of all
    assert page.tags.count("figure") == 9 * 3 + 3
    assert "On average over 9 tasks method 0, method 1" in page.text
    assert "Cost on glue/t8" in page.text and "mean over tasks" in page.text


def test_runs_that_differ_in_their_environment_are_named(tmp_path):
    for number, version in enumerate(("2.4", "2.4", "2.5")):
        run = make_run(tmp_path / "runs" / f"kd-s{number}", "kd", number)
        found = environment(packages={"torch": version, "numpy": "2.0"})
        (run / "environment.json").write_text(json.dumps(found))
    page = Page(written([tmp_path / "runs"], tmp_path))
    assert "The runs differ in: torch." in page.text and "2.4 (2 runs), 2.5 (1 run)" in page.text


def test_folders_of_the_machine_stay_out_of_notes(tmp_path):
    make_run(tmp_path / "home" / "runs" / "kd", "kd")
    unfinished = tmp_path / "home" / "runs" / "fsd"
    unfinished.mkdir()
    (unfinished / "recipe.yaml").write_text("{}")
    entries = [{"label": "kd", "scores": [0.5], "missing": 1, "why": "/home/somebody/x.csv is no file"}]
    study = make_study(tmp_path / "home" / "a study", entries, baselines=[])
    text = Page(written([tmp_path / "home" / "runs"], tmp_path)).text
    assert "Left out of runs, because they are not finished: fsd." in text and str(tmp_path) not in text
    text = Page(written([study], tmp_path)).text
    assert "(x.csv is no file)" in text and "somebody" not in text


def test_figures_and_tables_are_written_beside(tmp_path):
    make_runs(tmp_path / "runs", "kd", [0.7])
    write_record(tmp_path / "runs" / "kd-s1", Record({}, {"cka_diagonal": {"after": 0.5}}, {}))
    written([tmp_path / "runs"], tmp_path, tmp_path / "figures")
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {f"trade-off-glue-rte.{form}" for form in ("svg", "png", "pdf")} | {
        f"cka-on-the-diagonal.{form}" for form in ("md", "tex", "csv")
    }


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs" / "kd", "kd")
    with pytest.raises(RunError, match=r"is a folder. Name the page to write, such as .*report\.html"):
        write_report([run], tmp_path)
    write_record(run, a_record())
    (run / "analysis" / "arrays.npz").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"analysis is damaged .* limbeck analyze --force"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'limbeck\[report\]'"):
        write_report([run], tmp_path / "report.html")


def test_a_report_loads_no_model():
    code = (
        "import sys, limbeck.report.page, limbeck.report.tables\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib', 'jinja2', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def measured(folder, task, label, seed=1, **values):
    run = make_run(folder / "runs" / f"{task.replace('/', '-')}-{label}-s{seed}", label, seed, task=task)
    write_record(run, Record({}, values, {}))
    return run


def test_the_table_of_diagonals(tmp_path):
    for seed, after in ((1, 0.8), (2, 0.9)):
        diagonal = {"teacher": 1.0, "before": 0.4, "after": after}
        measured(tmp_path, "glue/rte", "kd", seed, cka_diagonal=diagonal)
    measured(tmp_path, "glue/mrpc", "kd", cka_diagonal={"teacher": 1.0, "before": 0.6, "after": 0.5})
    measured(tmp_path, "glue/mrpc", "fsd", cka_diagonal={"teacher": 1.0, "before": 0.6, "after": 0.95})
    make_run(tmp_path / "runs" / "other", "kd", task="glue/qqp")
    assert render(table(tmp_path / "runs", "CKA on the diagonal"), "csv") == (
        "models,glue/mrpc,glue/rte,mean over tasks\n"
        "teacher – teacher,1.000,1.000,1.000\n"
        "teacher – student before,0.600,0.400,0.500\n"
        "teacher – fsd,0.950,–,–\n"
        "teacher – kd,0.500,0.850,0.675\n"
    )


def differences(*final):
    """Make differences before and after training; what was before must not count."""
    return [{"step": 0, **dict.fromkeys(RELATIONS, -1.0)}, {"step": 9, **dict(zip(RELATIONS, final, strict=True))}]


def test_the_table_of_ranks(tmp_path):
    measured(tmp_path, "glue/rte", "a", relation_difference=differences(1, 1, 5, 2))
    measured(tmp_path, "glue/rte", "b", relation_difference=differences(2, 1, 4, 2))
    measured(tmp_path, "glue/rte", "c", 1, relation_difference=differences(2, 9, 9, 1))
    measured(tmp_path, "glue/rte", "c", 2, relation_difference=differences(4, 9, 9, 1))  # 3 is the mean over seeds
    measured(tmp_path, "glue/rte", "d", relation_difference=[{"step": 0, "inter_cosine": 1.0}])
    # ranks: 1 2 3, then 1.5 1.5 3, then 2 1 3, then 2.5 2.5 1
    assert rows(table(tmp_path / "runs", "Relation difference, ranks")) == [["a", "1.75"], ["b", "1.75"], ["c", "2.50"]]


def test_the_mean_rank_over_tasks(tmp_path):
    for task, order in (("glue/rte", "ab"), ("glue/mrpc", "ba")):
        for place, label in enumerate(order):
            measured(tmp_path, task, label, relation_difference=differences(*[place] * 4))
    measured(tmp_path, "glue/rte", "c", relation_difference=differences(*[7] * 4))
    found = table(tmp_path / "runs", "Relation difference, ranks")
    assert found.head == ("method", "glue/mrpc", "glue/rte", "mean over tasks")
    assert rows(found) == [["a", "2.00", "1.00", "1.50"], ["b", "1.00", "2.00", "1.50"], ["c", "–", "3.00", "–"]]


def test_the_table_of_costs(tmp_path):
    cost = {
        "parameters": 67_000_000,
        "trained_parameters": 68_000_000,
        "disk_bytes": 268_000_000,
        "training": 1.25,
        "milliseconds": 6.125,
        "batch_size": 1,
        "tokens": 64,
        "session": SESSION,
    }
    teacher = {"teacher_parameters": 109_000_000, "teacher_disk_bytes": None, "teacher_milliseconds": 12.25}
    measured(tmp_path, "glue/rte", "fsd", cost=cost | teacher | {"inference": 1.0, "speedup": 2.0})
    measured(tmp_path, "glue/rte", "ft", cost=cost | {"training": None})
    make_run(tmp_path / "runs" / "unmeasured", "kd")
    found = table(tmp_path / "runs", "Cost")
    assert rows(found) == [
        ["teacher", "109.0 M", "–", "–", "–", "–", "12.2", "–"],
        ["fsd", "67.0 M", "68.0 M", "268.0 MB", "1.25", "1.00", "6.12", "2.00"],
        ["ft", "67.0 M", "68.0 M", "268.0 MB", "–", "–", "6.12", "–"],
    ]
    (note,) = found.notes
    assert "for one text of 64 tokens on A <processor>, 2 threads; all models took turns" in note


def session(day):
    return {"id": f"{day:02}", "processor": "P", "threads": 1}


def timed(milliseconds, teacher, session=None):
    found = {"parameters": 1000, "milliseconds": milliseconds, "teacher_milliseconds": teacher, "tokens": 64}
    return found | {"speedup": teacher / milliseconds, "inference": 1.07} | ({"session": session} if session else {})


def latencies(folder):
    """Return the last two columns of the table of costs, by their row."""
    return {row[0]: (row[5], row[6], row[7]) for row in rows(table(folder, "Cost"))}


def test_latencies_of_two_sessions_are_not_compared(tmp_path):
    """Show the session that timed most methods; a busy machine made the other one's teacher ten times as slow."""
    for label, cost in (
        ("a", timed(6.0, 12.0, session(2))),
        ("b", timed(6.0, 12.0, session(2))),
        ("c", timed(60.0, 120.0, session(3))),
    ):
        measured(tmp_path, "glue/rte", label, cost=cost)
    shown = latencies(tmp_path / "runs")
    assert shown == {
        "teacher": ("–", "12", "–"),
        "a": ("1.07", "6", "2.00"),
        "b": ("1.07", "6", "2.00"),
        "c": ("–", "–", "–"),
    }
    note = table(tmp_path / "runs", "Cost").notes[1]
    assert note.startswith(
        "Without latency, because it was not measured in turns with the others: c. 'limbeck analyze'"
    )
    (figure,) = [found for found in all_figures(gather(read_entries([tmp_path / "runs"]))) if found.kind == "trade-off"]
    assert "c" not in re.findall(r"(\w+) [\d.]+ at", figure.alt) and "is not known: c." in figure.caption


def test_of_two_sessions_with_as_many_methods_the_last_one_counts(tmp_path):
    for seed, cost in ((1, timed(9.0, 9.0, session(4))), (2, timed(5.0, 10.0, session(5))), (3, timed(7.0, 7.0))):
        run = make_run(tmp_path / "runs" / f"kd-s{seed}", "kd", seed)
        write_record(run, Record({}, {"cost": cost}, {}))
    assert latencies(tmp_path / "runs")["kd"] == ("1.07", "5", "2.00")
    assert len(table(tmp_path / "runs", "Cost").notes) == 1  # no method is without


def test_a_latency_that_was_not_measured_in_turns_is_not_shown(tmp_path):
    """Read records as they were before there were sessions."""
    measured(tmp_path, "glue/rte", "kd", cost=timed(0.08, 6.63))
    found = table(tmp_path / "runs", "Cost")
    assert rows(found) == [["kd", "1.0 k", *"––––––"]]
    assert "not measured in turns with the others: kd." in found.notes[1] and "ms: the fastest" not in found.notes[0]
    results = gather(read_entries([tmp_path / "runs"]))
    assert "as fast" not in " ".join(sentences(results))
    (figure,) = [found for found in all_figures(results) if found.kind == "trade-off"]
    assert "parameters" in figure.title


def test_the_tables_of_restoration(tmp_path):
    labels = [0, 1, 1, 1]
    for seed, answers in ((1, [0, 1, 1, 1]), (2, [0, 1, 1, 0])):
        columns = classes(labels, answers) | {"teacher_prediction": [0, 0, 1, 1]}
        make_run(tmp_path / "runs" / f"kd-s{seed}", "kd", seed, answers=columns, examples=4)
    # as the teacher says, 2 of 3 and 1 of 2 second classes are right; 2 of 2 and 1 of 2 are found
    found = table(tmp_path / "runs", "Restoration")
    assert found.head == ("method", "precision", "recall", "f1", "agreement")
    assert rows(found) == [["kd", "58.33 ± 11.79", "75.00 ± 35.36", "65.00 ± 21.21", "62.50 ± 17.68"]]
    assert rows(table(tmp_path / "runs", "Restoration by class"))[1] == [
        *("kd", "1", "58.33 ± 11.79", "75.00 ± 35.36", "65.00 ± 21.21", "2")
    ]


def test_the_tables_of_calibration_and_similarity(tmp_path):
    answers = {"id": [0, 1], "label": [1, 0], "prediction": [1, 1], "teacher_prediction": [1, 0]}
    sure = {"logits": [[-50.0, 50.0]] * 2, "teacher_logits": [[-50.0, 50.0], [50.0, -50.0]]}
    run = make_run(tmp_path / "runs" / "kd", "kd", answers=answers | sure, examples=2)
    assert rows(table(tmp_path / "runs", "Calibration")) == [
        ["teacher", "0.0000", "0.0000"],
        ["kd", "0.5000", "1.0000"],
    ]
    assert table(tmp_path / "runs", "Intra-class similarity") is None
    write_record(run, Record({}, {"intra_class_similarity": {"before": 0.25, "after": 0.5}}, {}))
    assert rows(table(tmp_path / "runs", "Intra-class similarity")) == [["student before", "0.250"], ["kd", "0.500"]]


def test_tables_of_nothing_are_left_out(tmp_path):
    make_run(tmp_path / "runs" / "kd", "kd")
    write_record(tmp_path / "runs" / "kd", Record({}, {"cka_diagonal": {"after": float("nan")}, "cost": None}, {}))
    assert all_tables(gather(read_entries([tmp_path / "runs"]))) == []


def test_everything_that_was_measured_has_its_table(study):
    titles = [found.title for found in all_tables(gather(read_entries([study])))]
    assert titles == [
        "CKA on the diagonal",
        "Relation difference, ranks",
        "Cost",
        "Restoration",
        "Restoration by class",
        "Calibration",
        "Intra-class similarity",
        "Intra-class similarity, all examples",
    ]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            {"kd": [0.70, 0.72], "fsd": [0.60, 0.60]},
            "On glue/rte the best student is kd: accuracy 71.00 (mean of 2 seeds), 94.7% of the teacher's 75.00, with "
            "61.2% of the parameters.",
        ),
        ({"kd": [0.9]}, "On glue/rte the student is kd: accuracy 90.00, 120.0% of the teacher's 75.00, with 61.2% of"),
        (
            {"a": [0.7], "b": [0.7], "c": [0.6]},
            "On glue/rte a and b are equal and the best students: accuracy 70.00, 93.3%",
        ),
    ],
)
def test_the_first_sentence(tmp_path, runs, said):
    for method, scores in runs.items():
        make_runs(tmp_path / "runs", method, scores)
    assert sentences(gather(read_entries([tmp_path / "runs"])))[0].startswith(said)


def test_less_is_better_where_it_is(tmp_path):
    teacher = {"parameters": 2_000, "metrics": {"perplexity": 8.0}}
    for method, score in (("kd", 12.0), ("fsd", 10.0)):
        make_run(tmp_path / "runs" / method, method, 1, {"perplexity": score}, teacher=teacher, parameters=1_000)
    measured_run(tmp_path / "fast", "kd", 1, 0.7)
    assert sentences(gather(read_entries([tmp_path / "runs"])))[0] == (
        "On glue/rte the best student is fsd: perplexity 10, where the teacher has 8, with 50.0% of the parameters."
    )
    assert sentences(gather(read_entries([tmp_path / "fast"])))[0].endswith("of the parameters, 2.00 times as fast.")


def test_sentences_about_several_tasks(tmp_path):
    scores = {"glue/rte": {"kd": 0.6, "fsd": 0.7}, "glue/mrpc": {"kd": 0.8, "fsd": 0.75}, "glue/qqp": {"kd": 0.8}}
    for task, found in scores.items():
        for method, score in found.items():
            make_run(tmp_path / task.replace("/", "-") / method, method, 1, score, task=task)
    two, three = ([tmp_path / name.replace("/", "-") for name in list(scores)[:number]] for number in (2, 3))
    assert sentences(gather(read_entries(two))) == [
        "On average over 2 tasks the best student is fsd: main score 72.50, 96.7% of the teacher's 75.00, with 61.2% "
        "of the parameters.",
        "4 runs: 2 methods on 2 tasks, 1 seed each.",
    ]
    assert sentences(gather(read_entries(three)))[0].startswith(
        "On average over 3 tasks the student is kd: main score 73.33"
    )


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({"kd": [0.7, 0.7], "fsd": [0.7, 0.7]}, ""),
        ({"kd": [0.7], "fsd": [0.7]}, "Every method has one run only"),
        ({"kd": [0.7], "fsd": [0.7, 0.7]}, "kd has one run only"),
        ({"a": [0.7], "b": [0.7], "c": [0.7, 0.7]}, "Each of a and b has one run only"),
    ],
)
def test_one_seed_is_warned_about(tmp_path, runs, said):
    for method, scores in runs.items():
        make_runs(tmp_path / "runs", method, scores)
    found = warning(gather(read_entries([tmp_path / "runs"])))
    assert found.startswith(said) if said else found == ""


def test_time_is_that_of_all_stages(tmp_path):
    run = make_run(tmp_path / "runs" / "tinybert", "tinybert", train_seconds=30.0)
    (run / "stage-1").mkdir()
    (run / "stage-1" / "metrics.json").write_text(json.dumps({"train_seconds": 90.0}))
    assert "2.0 min of training each" in Page(written([tmp_path / "runs"], tmp_path)).text


def test_a_test_that_is_not_for_these_runs_is_left_out(tmp_path):
    entries = [{"label": label, "scores": [0.5, 0.6]} for label in ("ft", "kd")]
    study = make_study(tmp_path / "study", entries, test="mcnemar")  # the runs keep no predictions
    page = Page(written([study], tmp_path))
    assert "The differences were not tested: study/runs/glue-rte/kd-s1/predictions.parquet is not there" in page.text
    assert [float(values["data-value"]) for values, _ in page.cells] == pytest.approx([0.55, 0.55])


def test_a_study_of_which_nothing_is_finished(tmp_path):
    entries = [{"label": "kd", "scores": [], "missing": 2, "why": "out of memory"}]
    page = Page(written([make_study(tmp_path / "study", entries, baselines=[])], tmp_path))
    assert "On glue/rte no student has a score yet." in page.text and "0 runs: 1 method on 1 task" in page.text
    assert "0 of 2 runs finished (out of memory)" in page.text and "No run is finished." in page.text
    assert [values for values, _ in page.cells if "data-value" in values] == []


def test_runs_on_different_data_have_no_report(tmp_path):
    make_run(tmp_path / "runs" / "a", "kd")
    make_run(tmp_path / "runs" / "b", "fsd", examples=5)
    with pytest.raises(DataError, match="different validation data"):
        write_report([tmp_path / "runs"], tmp_path / "report.html")


def test_a_label_called_teacher_is_a_student(tmp_path):
    make_run(tmp_path / "runs" / "a", "teacher", 1, 0.5, answers=decided())
    page = Page(written([tmp_path / "runs"], tmp_path))
    ((values, shown),) = page.cells
    assert values["data-label"] == "teacher" and float(values["data-value"]) == 0.5 and shown.strip() == "50.00"
    found = table(tmp_path / "runs", "Calibration")
    assert [row[0].text for row in found.rows] == ["teacher", "teacher"] and found.rows[0] != found.rows[1]


def test_several_studies_are_repeated_one_by_one(tmp_path):
    for name, label in (("one", "kd"), ("two", "fsd")):
        study = make_study(tmp_path / name, [{"label": label, "scores": [0.7]}], baselines=[], study=name)
        (study / "study.yaml").write_text(yaml.safe_dump({"methods": [label]}))
    alone = make_run(tmp_path / "alone", "ft")
    text = Page(written([tmp_path / "one", tmp_path / "two", alone], tmp_path)).text
    assert "limbeck study study.yaml -o studies/one" in text and "limbeck study study.yaml -o studies/two" in text
    assert text.count("limbeck distill recipe.yaml") == 1 and "-o runs/alone" in text
