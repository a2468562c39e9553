"""Run a command in this process in a folder of its own, and see everything that it does to files."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from limbeck.cli.main import main

SECONDS = 30  # after which a command counts as hanging
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# by the event's name: how many paths it has, and where it says which folder they are relative to
_CHANGES = {"os.mkdir": (1, 2), "os.remove": (1, 1), "os.rmdir": (1, 1), "os.rename": (2, 2), "os.link": (2, 2)}
_CHANGES["os.symlink"] = (2, 2)


class Hangs(BaseException):
    """Stop a command that hangs; no 'except Exception' must catch it."""


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str
    escaped: BaseException | None  # what came out of main() instead of an exit
    touched: frozenset[Path]  # what Python opened for writing, made, moved or removed
    changed: frozenset[Path]  # what is there now and was not, or is otherwise than it was, or is gone

    @property
    def message(self) -> str:
        """Return what the user is told, in one line."""
        return " ".join(self.err.replace("│", " ").split())


@dataclass
class _Guard:
    """Hear which files are written, and let nothing be written outside of ``home``: a test may try anything.

    An audit hook cannot be removed, so there is one that is told when to listen.
    """

    files: set[Path] | None = None
    home: Path = Path()
    installed: bool = False

    def hear(self, event: str, values: tuple[Any, ...]) -> None:
        if self.files is None:
            return
        if event == "open" and values[2] & _WRITES and values[0] != os.devnull:
            self._add(values[0])
        elif event in _CHANGES:
            paths, folder = _CHANGES[event]
            if all(value == -1 for value in values[folder:]):  # else inside a folder that is open
                for value in values[:paths]:
                    self._add(value)

    def _add(self, name: Any) -> None:
        if isinstance(name, int):
            return  # opened before
        path = Path(os.path.abspath(os.fsdecode(name)))
        if "__pycache__" in path.parts:
            return
        self.files.add(path)  # type: ignore[union-attr]
        if not path.is_relative_to(self.home):
            raise PermissionError(errno.EPERM, "The test does not allow it", str(path))

    @contextmanager
    def listening(self, home: Path) -> Iterator[set[Path]]:
        if not self.installed:
            sys.addaudithook(self.hear)
            self.installed = True
        found: set[Path] = set()
        self.files, self.home = found, home
        try:
            yield found
        finally:
            self.files = None


_GUARD = _Guard()


class Watched:
    """Run ``watched("validate", "recipe.yaml")`` in the folder ``work``; the user's home and the like lie beside it."""

    def __init__(self, home: Path) -> None:
        self.home, self.work, self.temporary = home, home / "the" / "user" / "work", home / "tmp"
        self.environment = {
            "HOME": str(home / "the" / "user"),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(home / "cache"),
            "HF_HOME": str(home / "cache" / "huggingface"),
            "COLUMNS": "200",
        }
        self.clear()

    def clear(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in (self.work, self.temporary, self.home / "cache"):
            folder.mkdir(parents=True)

    def __call__(self, *words: Any) -> Outcome:
        before = _listing(self.home)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", how) for how in ("strict", "backslashreplace"))
        status, escaped = 0, None
        with self._at_home(), _GUARD.listening(self.home) as touched, redirect_stdout(out), redirect_stderr(err):
            try:
                with _alarm(), mock.patch.object(sys, "argv", ["limbeck", *map(str, words)]):
                    main()
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else int(error.code is not None)
            except (Exception, Hangs) as error:
                escaped = error
        said = []
        for stream in (out, err):
            stream.flush()
            said.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # type: ignore[attr-defined]
        after = _listing(self.home)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        return Outcome(status, said[0], said[1], escaped, frozenset(touched), frozenset(changed))

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        """Put back whatever the command changes of this process."""
        logger, cwd, path = logging.getLogger("limbeck"), os.getcwd(), list(sys.path)
        handlers, level = logger.handlers, logger.level
        os.chdir(self.work)
        try:
            with (
                mock.patch.dict(os.environ, self.environment),
                mock.patch.object(tempfile, "tempdir", str(self.temporary)),
            ):
                yield
        finally:
            os.chdir(cwd)
            sys.path[:] = path
            logger.handlers, logger.level = handlers, level


def _listing(folder: Path) -> dict[Path, tuple[int, int] | None]:
    found: dict[Path, tuple[int, int] | None] = {}
    for parent, folders, files in os.walk(folder):
        found |= {Path(parent, name): None for name in folders}
        for name in files:
            about = os.lstat(Path(parent, name))
            found[Path(parent, name)] = about.st_size, about.st_mtime_ns
    return found


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise Hangs after a while; an alarm that somebody else has set goes on afterwards."""

    def ring(*_: Any) -> None:
        raise Hangs(f"nothing came of it within {SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)
