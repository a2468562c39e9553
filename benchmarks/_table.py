"""Time fairly, measure peak memory, and print a table that can be checked: for all benchmark scripts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """Hold one line of the table; ``met`` is None where nothing was promised, or the other side is not installed."""

    case: str
    against: str
    ours_ms: float | None = None
    theirs_ms: float | None = None
    ours_mb: float | None = None
    theirs_mb: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def speedup(self) -> float | None:
        return self.theirs_ms / self.ours_ms if self.ours_ms and self.theirs_ms else None


def fastest(
    ours: Callable[[], object], theirs: Callable[[], object] | None, repeats: int
) -> tuple[float, float | None]:
    """Return the milliseconds of the fastest call of each; they take turns, so that a busy moment hits both."""
    best = {"ours": float("inf"), "theirs": float("inf")}
    ours()
    for _ in range(repeats):
        for name, call in (("theirs", theirs), ("ours", ours), ("ours", ours)):
            if call is not None:
                best[name] = min(best[name], 1e3 * seconds(call))
    return best["ours"], best["theirs"] if theirs is not None else None


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_mb_here(call: Callable[[], object]) -> float:
    """Measure by how much one call raises the resident memory of this process, at its highest (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = status_mb("VmRSS")
    call()
    return status_mb("VmHWM") - before


def status_mb(field: str) -> float:
    """Read what the system says of this process's memory (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))


def peak_mb(case: str, side: str) -> float | None:
    """Measure the same in a fresh process, which runs this script with ``--memory CASE SIDE`` and prints the number."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, sys.argv[0], "--memory", case, side]
    # Tensors on pages of their own, given back when freed: otherwise the heap's fragmentation is measured too.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def arguments(description: str) -> argparse.Namespace:
    return parser(description).parse_args()


def begin(description: str, memory: Callable[[str, str], float]) -> argparse.Namespace:
    """Read the options and set torch's threads; a process that ``peak_mb`` started prints its number and ends here."""
    import torch

    options = arguments(description)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory:
        print(memory(*options.memory))
        sys.exit()
    return options


def parser(description: str) -> argparse.ArgumentParser:
    """Make a parser of the options that every script has; some add their own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: about a minute")
    parser.add_argument("--threads", type=int, metavar="N", help="of torch; by default as many as there are cores")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    return parser


def finish(title: str, rows: list[Row], options: argparse.Namespace) -> None:
    """Print the table, write the file, and exit as ``--check`` asks."""
    table = Table(title=title)
    for column in ("case", "against"):
        table.add_column(column)
    for column in ("ours", "theirs", "ratio", "ours MB", "theirs MB"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("target", "met", "note"):
        table.add_column(column)
    for r in rows:
        ratio = f"{r.speedup:.1f}x" if r.speedup else ""
        met = {True: "yes", False: "NO", None: ""}[r.met]
        table.add_row(
            r.case,
            r.against,
            _ms(r.ours_ms),
            _ms(r.theirs_ms),
            ratio,
            _mb(r.ours_mb),
            _mb(r.theirs_mb),
            r.target,
            met,
            r.note,
        )
    wide = None if sys.stdout.isatty() else 170
    Console(width=wide).print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) | {"ratio": r.speedup} for r in rows], indent=1) + "\n")
    missed = [r.case for r in rows if r.met is False]
    conclude(missed, options)


def conclude(missed: list[str], options: argparse.Namespace) -> None:
    """Say which targets were missed, and exit as ``--check`` asks."""
    if missed:
        print("Missed: " + "; ".join(missed))
    if options.check and missed:
        sys.exit(1)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def _mb(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
