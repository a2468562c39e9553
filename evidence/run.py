"""Everything from data to page for one task: ``python -m evidence.run mrpc --data data/glue``.

The study, how similar its students are to their teacher, each loss on validation data, the file in ``results/``, and
the page. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import yaml

from evidence.dev_terms import first_runs
from evidence.page import ROOT
from evidence.results import ABLATIONS, MAIN, OTHERS, TASKS
from limbeck.study.description import short
from limbeck.study.loading import load_study

STUDIES = {MAIN: "evidence", OTHERS: "evidence/others", ABLATIONS: "evidence/ablations"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[short(task) for task in TASKS])
    parser.add_argument("--study", choices=STUDIES, default=MAIN)
    parser.add_argument("--data", default="data/glue", help="the folder of GLUE's tasks")
    parser.add_argument("--encoder", default="", help="a copy of the teacher's encoder, instead of the hub's")
    parser.add_argument("--studies", type=Path, default=Path("studies"), help="where the models are kept meanwhile")
    parser.add_argument("--workers", default="2")
    words = parser.parse_args()
    folder = words.studies / f"{words.study}-{words.task}"
    settings = [f"task.data_dir={words.data}", *([f"teacher.model={words.encoder}"] if words.encoder else [])]
    _run("limbeck", *study(words.study, words.task), *settings, "--workers", words.workers, "-o", folder)
    if words.study == MAIN:
        runs = first_runs(folder)[f"glue/{words.task}"]
        _run("limbeck", "analyze", *runs.values(), "--no-cost", "-o", folder / "figures")
        _run("evidence.dev_terms", folder)
    _run("evidence.collect", folder, ROOT / "results" / words.study)
    _run("evidence.page")


def study(name: str, task: str) -> list[str]:
    """The study on this task alone, with what it sets for it."""
    tasks = load_study(STUDIES[name]).tasks
    one = {f"glue/{task}": tasks.get(f"glue/{task}", {})}
    return ["study", STUDIES[name], f"tasks={yaml.safe_dump(one, default_flow_style=True, width=1000).strip()}"]


def _run(module: str, *words: object) -> None:
    line = [sys.executable, "-m", module, *map(str, words)]
    print(*line[1:], flush=True)
    if code := subprocess.run(line).returncode:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
