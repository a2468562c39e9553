"""Check the evidence page: what a study found is kept whole, judged by its rule, and shown as it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.fake_runs import make_study

from evidence import collect, page, run
from evidence.claims import CLAIMS, Claim, findings_of, verdict
from evidence.results import ABLATIONS, MAIN, OTHERS, ResultFiles
from evidence.tables import GROUPS, ablation_tables, claims_table, dev_table, main_table, readme_table, settings_table

RELATIONS, NEIGHBOURS = ABLATIONS[2:]
ROOT = Path(__file__).parents[3]
HIGH, LOW, SAME = [0.80, 0.81, 0.79, 0.80], [0.60, 0.61, 0.59, 0.60], [0.60, 0.62, 0.58, 0.61]


def run_of(seed, score, **more):
    return {
        "seed": seed,
        "metric": "accuracy",
        "score": score,
        "metrics": {"accuracy": score},
        "majority": {"accuracy": 0.5},
        "parameters": 17_400_000,
        "steps": 10,
        "commit": "abc" * 13 + "d",
        "seconds": 60.0 + seed,
        "examples": 100,
        "agreement": 0.9,
        "terms": {"task": [1.0, 0.5]},
    } | more


def dev_of(label, others):
    """Make a loss that falls from 0.8, for the method's own student to 0.1."""
    falls = (
        {"before": 0.8} | {name: value for name, value in (("ft", 0.7), ("kd", 0.6)) if name in others} | {label: 0.1}
    )
    return {"terms": {name: {"task": value} for name, value in falls.items()}, "pulls": {"task": 0.25}}


def put(folder, study, task, scores, printed=()):
    recipe = {"student": {"from": "teacher", "keep": "first:3"}, "train": {"epochs": 3, "batch_size": 32}}
    teacher = {"student": {"model": "models/enc"}, "train": {"epochs": 3, "batch_size": 32, "learning_rate": 1e-4}}
    methods = [
        {
            "label": label,
            "chosen": {},
            "searched": [{"point": {"method.alpha": 0.2}, "score": 0.5}],
            "missing": 4 - len(values),
            "why": "",
            "printed": list(printed),
            "dev": dev_of(label, scores) if study == MAIN else None,
            "recipe": recipe,
            "runs": [run_of(seed, score) for seed, score in enumerate(values, 1)],
        }
        for label, values in scores.items()
    ]
    found = {"study": study, "task": task, "commits": ["abc" * 13 + "d"], "seeds": [1, 2, 3, 4], "select_seeds": [0]}
    found |= {"selection": "Chosen on seed 0.", "environment": {}, "methods": methods}
    found |= {"teacher": run_of(0, 0.9) | {"recipe": teacher}}
    file = folder / study / f"{task.rpartition('/')[2]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found))


def judged(tmp_path, better, *than):
    claim = Claim("Somebody 2020", "one beats another", better, than)
    return verdict(findings_of(claim, ResultFiles(tmp_path)))


def test_a_claim_holds_where_a_difference_is_sure_and_none_is_against_it(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"ft": LOW, "cka": HIGH, "kd": SAME})
    put(tmp_path, MAIN, "glue/mrpc", {"ft": LOW, "cka": SAME})
    assert judged(tmp_path, "cka", "ft") == "yes"
    assert judged(tmp_path, "ft", "cka") == "no"
    assert judged(tmp_path, "kd", "ft") == "not decided"
    assert judged(tmp_path, "kd", "pkd") == "not tested"
    put(tmp_path, MAIN, "glue/cola", {"ft": HIGH, "cka": LOW})
    assert judged(tmp_path, "cka", "ft") == "not decided"


def test_the_p_of_a_claim_is_corrected_for_all_of_its_tests(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"ft": SAME, "kd": LOW, "fcd": [0.63, 0.65, 0.61, 0.64]})
    results = ResultFiles(tmp_path)
    alone = findings_of(Claim("", "", "fcd", ("ft",)), results)
    both = findings_of(Claim("", "", "fcd", ("ft", "kd")), results)
    assert both[0].test == alone[0].test and both[0].p >= alone[0].p
    assert both[1].p == pytest.approx(2 * both[1].test.p)


def test_one_seed_tests_nothing(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"ft": LOW, "cka": [0.9]})
    assert judged(tmp_path, "cka", "ft") == "not tested"
    rows = {row[0].text: row for row in main_table(ResultFiles(tmp_path)).rows}
    assert rows["cka"][1].text == "90.0, 3 missing" and rows["cka"][1].marks == ""
    put(tmp_path, RELATIONS, "glue/rte", {"fcd": LOW, "fcd, KL": [0.9]})
    assert ablation_tables(ResultFiles(tmp_path)) == []


def test_methods_of_one_study_are_compared_with_each_other(tmp_path):
    """Compare ``fcd`` of the ablations, with fixed weights, apart from that of the main study, with chosen ones."""
    put(tmp_path, MAIN, "glue/rte", {"ft": SAME, "fcd": HIGH})
    put(tmp_path, RELATIONS, "glue/rte", {"fcd": LOW, "fcd, MSE": HIGH})
    results = ResultFiles(tmp_path)
    (found,) = findings_of(Claim("", "", "fcd", ("fcd, MSE",)), results)
    assert found.ours.summary.mean == pytest.approx(60)
    (found,) = findings_of(Claim("", "", "fcd", ("ft",)), results)
    assert found.ours.summary.mean == pytest.approx(80)


def test_tables_show_marks_missing_cells_and_what_papers_print(tmp_path):
    printed = [{"metric": "f1", "value": 1.0}, {"metric": "accuracy", "value": 65.4, "sd": 1.56, "where": "x"}]
    put(tmp_path, MAIN, "glue/rte", {"ft": LOW, "kd": LOW, "cka": HIGH, "fsd": [0.3, 0.31, 0.29]}, printed)
    put(tmp_path, OTHERS, "glue/rte", {"pkd": SAME})
    table = main_table(ResultFiles(tmp_path))
    rows = {row[0].text: row for row in table.rows}
    assert rows["cka"][1].text == "80.0 ± 0.8" and rows["cka"][1].marks == "†‡"
    assert rows["fsd"][1].text == "30.0 ± 1.0, 1 missing" and rows["fsd"][1].marks == "†↓‡↓"
    assert rows["pkd"][1].text == "60.2 ± 1.7" and rows["pkd"][1].marks == ""
    assert rows["ics"][1].text == rows["ft"][3].text == rows["teacher"][3].text == "missing"
    assert rows["cka"][2].text == "65.4 ± 1.56" and rows["teacher"][1].text == "90.0"
    assert [row[0].text for row in readme_table(ResultFiles(tmp_path)).rows] == [
        "teacher",
        "ft",
        "kd",
        "cka",
        "fsd",
        "pkd",
    ]


def test_ablations_are_against_the_first_of_their_group(tmp_path):
    put(tmp_path, RELATIONS, "glue/rte", {"fcd": LOW, "fcd, KL": HIGH, "fcd, MSE": SAME})
    put(tmp_path, NEIGHBOURS, "glue/rte", {"ics, K = 1": LOW})
    (table,) = ablation_tables(ResultFiles(tmp_path))
    assert [row[2].text.split()[0] if row[2].text else "" for row in table.rows] == ["", "+0.2", "+20.0"]


def test_ablations_that_did_not_run_are_named(tmp_path):
    project(tmp_path)
    put(tmp_path / "results", NEIGHBOURS, "glue/rte", {"ics, K = 1": LOW, "ics, K = 2": HIGH})
    page.write(tmp_path)
    text = (tmp_path / "docs" / "evidence.md").read_text()
    assert "### K of ICS" in text and "- K of ICS" not in text
    titles = [title for title in GROUPS if title != "K of ICS"]
    assert titles and all(f"- {title}\n" in text and f"### {title}" not in text for title in titles)


def test_settings_that_failed_are_named(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"kd": LOW})
    file = tmp_path / MAIN / "rte.json"
    values = json.loads(file.read_text())
    values["methods"][0]["searched"].append({"point": {"train.learning_rate": 3e-4}, "score": None})
    file.write_text(json.dumps(values))
    (row,) = settings_table(ResultFiles(tmp_path)).rows
    assert row[2].text == "alpha 0.2: 50.0; learning_rate 0.0003: failed"


def test_claims_and_groups_name_methods_of_the_study():
    from limbeck.study.loading import load_study

    methods = {name: set(load_study(name.replace("-", "/")).methods) for name in (MAIN, OTHERS, *ABLATIONS)}
    assert {label for claim in CLAIMS for label in (claim.better, *claim.than)} <= set.union(*methods.values())
    ablated = set.union(*(methods[name] for name in ABLATIONS))
    assert {label for labels in GROUPS.values() for label in labels} == ablated
    # what is compared ran in one study
    assert all(any(set(labels) <= methods[name] for name in ABLATIONS) for labels in GROUPS.values())


def study_folder(home):
    for name, seed in (("teachers/t", 0), ("runs/a-s1", 1), ("runs/a-s2", 2)):
        folder = home / name
        folder.mkdir(parents=True)
        metrics = {key: value for key, value in run_of(seed, 0.7).items() if key not in ("commit", "seconds", "terms")}
        metrics |= {"train_seconds": 12.5, "teacher": {"agreement": 0.75}}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "environment.json").write_text(json.dumps({"commit": f"c{seed}", "device": "cpu"}))
        (folder / "recipe.yaml").write_text(yaml.safe_dump({"method": {"name": "kd"}, "seed": seed}))
        history = [{"loss": 2.0, "term/kd": 3.0}, {"loss": 1.0, "term/kd": 0.5}, {"eval_accuracy": 0.7}]
        (folder / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history))
    entry = {"task": "glue/rte", "label": "kd", "chosen": {"method.alpha": 0.2}, "missing": 1, "why": "killed"}
    entry |= {"searched": [{"point": {"method.alpha": 0.2}, "score": 0.6}], "runs": ["runs/a-s1", "runs/a-s2"]}
    found = {"selection": "s", "entries": [entry], "teachers": {"glue/rte": "teachers/t"}}
    (home / "results.json").write_text(json.dumps(found))
    asked = {"tasks": {"glue/rte": {}}, "seeds": [1, 2], "select_seeds": [0]}
    (home / "study.yaml").write_text(yaml.safe_dump(asked))


def test_what_a_study_found_is_kept_with_commit_recipe_and_seeds(tmp_path, monkeypatch):
    study_folder(tmp_path / "study")
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path / "study"), str(tmp_path / "results" / MAIN)])
    collect.main()
    values = json.loads((tmp_path / "results" / MAIN / "rte.json").read_text())
    assert values["study"] == MAIN and values["commits"] == ["c0", "c1", "c2"] and values["seeds"] == [1, 2]
    (method,) = values["methods"]
    assert method["recipe"] == {"method": {"name": "kd"}} and method["missing"] == 1 and method["why"] == "killed"
    assert method["printed"][0]["value"] == 65.4  # of Jung et al. 2023's VKD on RTE
    assert [run["seed"] for run in method["runs"]] == [1, 2]
    assert method["runs"][0]["terms"] == {"kd": [3.0, 0.5]} and method["runs"][0]["agreement"] == 0.75
    assert ResultFiles(tmp_path / "results").method(MAIN, "glue/rte", "kd").scores == [70.0, 70.0]


def project(home):
    (home / "evidence").mkdir(parents=True)
    (home / "evidence" / "findings.md").write_text("Nothing yet.\n")
    (home / "docs").mkdir(parents=True)
    (home / "README.md").write_text(f"a\n{page.BEGIN}\nold\n{page.END}\nb\n")
    put(home / "results", MAIN, "glue/rte", {"ft": LOW, "kd": SAME, "cka": HIGH})


def files_of(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_page_is_the_same_every_time(tmp_path):
    project(tmp_path)
    page.write(tmp_path)
    first = files_of(tmp_path)
    assert sorted(map(str, first)) == [
        *("README.md", "docs/evidence.md", "docs/evidence/scores.svg", "evidence/findings.md"),
        "results/evidence/rte.json",
    ]
    text = first[Path("README.md")].decode()
    assert text.startswith("a\n") and text.endswith("b\n") and "old" not in text and "80.0 ± 0.8" in text
    (tmp_path / "docs" / "evidence" / "gone.svg").write_text("of a task that is not there any more")
    page.write(tmp_path)
    assert files_of(tmp_path) == first
    put(tmp_path / "results", MAIN, "glue/rte", {"ft": LOW, "kd": SAME, "cka": LOW})
    page.write(tmp_path)
    assert files_of(tmp_path)[Path("docs/evidence.md")] != first[Path("docs/evidence.md")]


def test_the_committed_page_is_that_of_the_committed_results(tmp_path):
    for name in ("results", "docs", "evidence"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    before = files_of(tmp_path)
    page.write(tmp_path)
    assert files_of(tmp_path) == before


def test_every_committed_file_names_its_commits_recipes_and_seeds():
    files = list((ROOT / "results").glob("*/*.json"))
    assert files
    for file in files:
        values = json.loads(file.read_text())
        assert values["study"] == file.parent.name and values["seeds"]
        assert all(len(commit) == 40 for commit in values["commits"])  # none of changed files
        for method in values["methods"]:
            assert method["recipe"]["method"]["name"] or not method["runs"]
            assert {run["commit"] for run in method["runs"]} <= set(values["commits"])
            assert {run["seed"] for run in method["runs"]} <= set(values["seeds"])


def test_without_results_there_is_no_page(tmp_path):
    with pytest.raises(SystemExit, match="is empty"):
        page.write(tmp_path)


def test_every_claim_has_a_row(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"ft": LOW, "kd": SAME, "cka": HIGH})
    rows = claims_table(ResultFiles(tmp_path)).rows
    assert [row[1].text for row in rows] == [claim.words for claim in CLAIMS]
    assert rows[0][2].text == "yes" and "+20.0" in rows[0][3].text


def test_the_terms_on_validation_data_are_shown_where_they_were_measured(tmp_path):
    put(tmp_path, MAIN, "glue/rte", {"ft": LOW, "kd": SAME, "cka": HIGH})
    put(tmp_path, MAIN, "glue/mrpc", {"ft": LOW, "cka": HIGH})
    rows = [[cell.text for cell in row] for row in dev_table(ResultFiles(tmp_path)).rows]
    assert rows[2] == ["rte", "cka", "task", "0.8", "0.7", "0.6", "0.1", "0.25"]
    assert rows[4] == ["mrpc", "cka", "task", "0.8", "0.7", "missing", "0.1", "0.25"]
    assert len(rows) == 5
    file = tmp_path / MAIN / "rte.json"
    values = json.loads(file.read_text())
    for method in values["methods"]:
        method["dev"] = None
    file.write_text(json.dumps(values))
    assert len(dev_table(ResultFiles(tmp_path)).rows) == 2


def test_a_study_of_some_tasks_keeps_what_is_set_for_them():
    assert run.study_arguments(MAIN, ["rte"]) == ["study", "evidence", "tasks={glue/rte: {task.max_length: 128}}"]
    both = ["study", "evidence/relations", "tasks={glue/cola: {}, glue/rte: {task.max_length: 128}}"]
    assert run.study_arguments(RELATIONS, ["cola", "rte"]) == both


@pytest.mark.parametrize("failing", [None, "evidence.dev_terms"])
def test_everything_from_data_to_page(tmp_path, monkeypatch, failing):
    """Run the steps in this order, and not beyond what fails."""
    calls = []

    def called(line):
        calls.append(line[2:])
        return subprocess.CompletedProcess(line, returncode=3 if line[2] == failing else 0)

    monkeypatch.setattr(run.subprocess, "run", called)
    folder, tasks = tmp_path / "models", ["mrpc", "cola"]
    make_study(folder, [{"label": "kd", "task": f"glue/{task}", "scores": [0.7, 0.8]} for task in tasks])
    monkeypatch.setattr(sys, "argv", ["run", *tasks, "--data", "there", "--folder", str(folder)])
    if failing:
        with pytest.raises(SystemExit, match="3"):
            run.main()
    else:
        run.main()
    first = {task: folder / "runs" / f"glue-{task}" / "kd-s1" for task in tasks}
    analyses = [
        ["limbeck", "analyze", str(of_kd), "--no-cost", "-o", str(folder / "figures" / task)]
        for task, of_kd in first.items()
    ]
    assert calls == [
        ["limbeck", *run.study_arguments(MAIN, tasks), "task.data_dir=there", "--workers", "2", "-o", str(folder)],
        *analyses,
        ["evidence.dev_terms", str(folder)],
        *([] if failing else [["evidence.collect", str(folder), str(ROOT / "results" / MAIN)], ["evidence.page"]]),
    ]
