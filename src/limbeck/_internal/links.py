"""Refuse links by which a folder that came from somebody else would have files written elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from limbeck.errors import RunError


def refuse_links(folder: Path) -> None:
    """Raise where anything in ``folder`` is a link that leaves it: call it before anything is written there.

    ``folder`` itself may be a link, because whoever names it says where to write. Links that stay inside are fine.
    """
    root = folder.resolve()
    for link in _links(str(folder)):
        target = _target(link)
        if target is None or not target.is_relative_to(root):
            raise _leaves(link, target, folder)


def refuse_outside(path: Path, folder: Path) -> None:
    """Raise where ``path``, found in ``folder``, is elsewhere because a link on the way leads out."""
    target = _target(path)
    if target is None or not target.is_relative_to(folder.resolve()):
        raise _leaves(path, target, folder)


def _leaves(link: Path, target: Path | None, folder: Path) -> RunError:
    place = f"to {target}" if target is not None else "without an end"
    return RunError(
        f"{link} is a link {place}, outside of {folder}, where this command must not write. If the link is yours, put "
        "what it points to in its place; if not, remove it."
    )


def _target(path: Path) -> Path | None:
    """Return where a path leads in the end; None where links go round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None


def _links(folder: str) -> Iterator[Path]:
    """Find every link below a folder, without following any."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # not there, or not to be listed: whoever writes says so
        return
    for entry in entries:
        if entry.is_symlink():
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _links(entry.path)
