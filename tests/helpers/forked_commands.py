"""Run commands in forked children of one process that has loaded everything, and kill them at exact moments.

A command in a process of its own spends most of its time on imports; a fork has them already.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

# Names of what a patch may put in the place of a function, which does not fit into a message.
FIXED_COST, FIXED_TIME = "helpers.forked_commands.fixed_cost", "helpers.forked_commands.fixed_time"


def fixed_cost(recipe: Any) -> Any:
    """Let every training of ``shrink`` cost the same, so that two of them make the same plan."""
    from limbeck.shrink.schedule import StepCost

    return StepCost(epoch=1.0, start=0.02)


def fixed_time(pipeline: Any) -> float:
    """Let all of the time be left, however long it took to come here."""
    return float(60 * pipeline.request.minutes)


class ForkedCommands:
    """Start the process that forks; ``with ForkedCommands() as run: run("study", "my.yaml", cwd=folder)``."""

    def __enter__(self) -> ForkedCommands:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.forked_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.communicate(timeout=60)

    def __call__(
        self,
        *words: Any,
        cwd: Path,
        at: tuple[str, int] | None = None,
        after: float | None = None,
        number: int = signal.SIGKILL,
        patches: dict[str, Any] | None = None,
    ) -> tuple[int, str]:
        """Run ``limbeck words`` in ``cwd`` and return its status, negative for a signal, and what it said.

        It gets the signal ``number`` when a function is called for the n-th time (``at``), or ``after`` some seconds.
        """
        asked = {"words": list(map(str, words)), "cwd": str(cwd), "at": at, "after": after}
        asked |= {"number": int(number), "patches": patches or {}}
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), (Path(cwd) / "said.txt").read_text()


def _run_child(asked: dict[str, Any]) -> None:
    from helpers.signals import signal_in
    from limbeck.cli.main import main

    os.chdir(asked["cwd"])
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    with ExitStack() as held:
        for target, value in asked["patches"].items():
            by_name = value in (FIXED_COST, FIXED_TIME)
            held.enter_context(mock.patch(target, pkgutil.resolve_name(value) if by_name else value))
        if asked["at"] is not None:
            held.enter_context(signal_in(asked["at"][0], asked["number"], asked["at"][1]))
        sys.argv = ["limbeck", *asked["words"]]
        main()


def main() -> None:
    """Read what to run from stdin, a line each, and write the statuses to stdout."""
    import torch

    import limbeck.analysis.analyze
    import limbeck.deploy.export
    import limbeck.shrink.pipeline
    import limbeck.study.runner  # noqa: F401  each is loaded once, for all children

    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            status: Any = 0
            try:
                _run_child(asked)
            except SystemExit as end:
                status = end.code
            except BaseException:
                import traceback

                traceback.print_exc()
                status = 99
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(status or 0))
        if asked["after"] is not None:
            threading.Thread(target=_kill_after, args=(child, asked["after"], asked["number"]), daemon=True).start()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _kill_after(child: int, seconds: float, number: int) -> None:
    time.sleep(seconds)
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
