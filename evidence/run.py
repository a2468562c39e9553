"""Do everything from data to page: ``python -m evidence.run mrpc cola --data data/glue``.

The study, how similar its students are to their teacher, each loss on validation data, the files in ``results/``, and
the page. Tasks that are named together have their teachers trained side by side. All studies share one folder, and in
it the teachers and what they computed. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from evidence.dev_terms import first_runs
from evidence.page import ROOT
from evidence.results import ABLATIONS, MAIN, OTHERS, TASKS
from limbeck.study.description import short_task
from limbeck.study.loading import load_study


def main() -> None:
    """Run the steps one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=[short_task(task) for task in TASKS], metavar="task")
    parser.add_argument("--study", choices=(MAIN, OTHERS, *ABLATIONS), default=MAIN)
    parser.add_argument("--data", default="data/glue", help="the folder of GLUE's tasks")
    parser.add_argument("--encoder", default="", help="a copy of the teacher's encoder, instead of the hub's")
    parser.add_argument("--folder", type=Path, default=Path("studies/evidence"), help="where models are kept meanwhile")
    parser.add_argument("--workers", default="2")
    words = parser.parse_args()
    settings = [f"task.data_dir={words.data}", *([f"teacher.model={words.encoder}"] if words.encoder else [])]
    _run(
        "limbeck", *study_arguments(words.study, words.tasks), *settings, "--workers", words.workers, "-o", words.folder
    )
    if words.study == MAIN:
        for task, runs in first_runs(words.folder).items():
            pictures = words.folder / "figures" / short_task(task)
            _run("limbeck", "analyze", *runs.values(), "--no-cost", "-o", pictures)
        _run("evidence.dev_terms", words.folder)
    _run("evidence.collect", words.folder, ROOT / "results" / words.study)
    _run("evidence.page")


def study_arguments(name: str, tasks: Sequence[str]) -> list[str]:
    """Compose the arguments that run a study on these tasks alone, with what it sets for them."""
    source = name.replace("-", "/")
    known = load_study(source).tasks
    chosen = {task: known[task] for task in (f"glue/{task}" for task in tasks)}
    return ["study", source, f"tasks={yaml.safe_dump(chosen, default_flow_style=True, width=1000).strip()}"]


def _run(module: str, *words: object) -> None:
    line = [sys.executable, "-m", module, *map(str, words)]
    print(*line[1:], flush=True)
    if code := subprocess.run(line).returncode:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
