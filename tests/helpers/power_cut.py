"""Record what is asked of a disk, and show what a power cut at any moment would leave of a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


class WatchedDisk:
    """Note every ``os.fsync``, ``os.replace`` and ``shutil.rmtree``, in their order.

    What was not synced is lost: a file's content, and a name in a folder. What was removed stays removed. Files that
    were there before the watch began are safe.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.events: list[tuple[str, Path]] = []
        self.before_removal: Callable[[Path], None] = lambda _: None
        self._contents: dict[int, tuple[int, int]] = {}
        self._names: dict[int, set[str]] = {}
        for parent, _, files in os.walk(home):
            for path in (Path(parent), *(Path(parent, name) for name in files)):
                self._keep(path)
        fsync, replace, rmtree = os.fsync, os.replace, shutil.rmtree

        def watched_fsync(handle: int) -> None:
            fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self.events.append(("fsync", path))
            self._keep(path)

        def watched_replace(source, target, **options) -> None:
            replace(source, target, **options)
            self.events.append(("replace", Path(target)))

        def watched_rmtree(path, *given, **options) -> None:
            if Path(path).exists():
                self.before_removal(Path(path))
                self.events.append(("rmtree", Path(path)))
            rmtree(path, *given, **options)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "replace", watched_replace)
        monkeypatch.setattr(shutil, "rmtree", watched_rmtree)

    def _keep(self, path: Path) -> None:
        about = path.stat()
        if path.is_dir():
            self._names[about.st_ino] = set(os.listdir(path))
        else:
            self._contents[about.st_ino] = about.st_size, about.st_mtime_ns

    def after_power_cut(self, folder: Path, into: Path) -> Path:
        """Copy ``folder`` as it would be found: without names, and with empty files, that never came to the disk."""
        into.mkdir(parents=True)
        names = self._names.get(folder.stat().st_ino, set())
        for path in sorted(folder.iterdir()):
            if path.name not in names:
                continue
            if path.is_dir():
                self.after_power_cut(path, into / path.name)
            else:
                about = path.stat()
                safe = self._contents.get(about.st_ino) == (about.st_size, about.st_mtime_ns)
                (into / path.name).write_bytes(path.read_bytes() if safe else b"")
        return into

    def index(self, what: str, path: Path, start: int = 0) -> int:
        """Return when something happened first, after ``start`` other events."""
        return self.events.index((what, path), start)
