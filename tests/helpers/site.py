"""Build the documentation as a site, and serve it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from helpers.paths import ROOT
from helpers.source_tree import tomllib

DOCS = ROOT / "docs"
SETTINGS = ROOT / "zensical.toml"
needs_builder = pytest.mark.skipif(find_spec("zensical") is None, reason="zensical is not installed")


def nav_pages() -> list[str]:
    """Return the pages of the navigation, in its order."""
    return list(_pages(tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["project"]["nav"]))


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for place in entry.values():
            if isinstance(place, str):
                yield place
            else:
                yield from _pages(place)


def path_of(place: str) -> str:
    """Return where the site has the page ``docs/place``: nothing for the first one, else with a slash behind it."""
    return re.sub(r"(index)?\.md$", lambda end: "" if end[1] else "/", place)


def copy_sources(folder: Path) -> Path:
    """Copy what the site is made of, so that a build writes beside the copy."""
    folder.mkdir()
    shutil.copy(SETTINGS, folder)
    shutil.copytree(DOCS, folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    return folder


def build_site(folder: Path) -> tuple[int, str]:
    """Build the site of `folder` into its folder ``site``; return the exit code and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing about requests."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; give the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
