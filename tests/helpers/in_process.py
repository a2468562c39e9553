"""Run a command in this process, where torch is loaded already."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import torch

from limbeck.cli.main import main


def run_command(*words: Any) -> tuple[int, str]:
    """Return the exit code of ``limbeck words`` and what it said on both streams, in one line without frames."""
    code, *said = _run(words)
    return code, " ".join("".join(said).replace("│", " ").split())


def json_of_command(*words: Any) -> Any:
    """Return what ``limbeck words --json`` prints, which must be JSON and nothing else on stdout."""
    code, out, err = _run((*words, "--json"))
    assert code == 0, err
    return json.loads(out, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _run(words: tuple[Any, ...]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    threads = torch.get_num_threads()
    with (
        mock.patch.object(sys, "argv", ["limbeck", *map(str, words)]),
        mock.patch.dict(os.environ),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    torch.set_num_threads(threads)  # --threads is for one command
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return int(code or 0), out.getvalue(), err.getvalue()
