"""Run a command in this process, where torch is loaded already."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import torch

from limbeck.cli.main import main


def run_command(*words: Any) -> tuple[int, str]:
    """Return the exit code of ``limbeck words`` and what it said on both streams, in one line without frames."""
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
    said = out.getvalue() + err.getvalue()
    return int(code or 0), " ".join(said.replace("│", " ").split())
