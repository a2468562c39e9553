"""Ask the command for studies: the list, mistakes, and where results go."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_studies_are_listed(command):
    status, said = command("studies")
    assert status == 0 and "alignment" in said and "alignment/small" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("study", "nothing"), "Unknown study 'nothing'"),
        (("study", "alignment/smal"), "Did you mean 'small'"),
        (("study", "alignment", "seeds=7"), "seeds"),
        (("study", "alignment", "--ray", "local", "--workers", "2"), "exclude each other"),
    ],
)
def test_mistakes_are_one_message(command, words, message):
    status, said = command(*words)
    assert status == 1 and message in said


@pytest.mark.parametrize(
    ("source", "folder"), [("alignment/small", "studies/alignment-small"), ("mine.yaml", "studies/mine")]
)
def test_each_study_has_a_folder_of_its_own(command, tmp_path, monkeypatch, source, folder):
    seen = []
    monkeypatch.setattr(
        "limbeck.study.runner.run_study", lambda study, where, *_: seen.append(where) or {"entries": []}
    )
    monkeypatch.setattr("limbeck.cli.train.show_study", lambda where: None)
    (tmp_path / "mine.yaml").write_text(
        "tasks: [glue/rte]\nteacher: {model: m}\nstudent: {model: s}\nmethods: [ft]\nseeds: [1]\n"
    )
    status, said = command("study", source)
    assert status == 0 and seen == [Path(folder)], said


def test_ray_refuses_more_threads_than_it_has(command):
    pytest.importorskip("ray")
    status, said = command("study", "alignment", "--ray", "local", "--threads", "10000")
    assert status == 1 and "has" in said and "CPUs in all" in said
