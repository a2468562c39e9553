"""Lock folders, so that two processes never write into the same one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from limbeck._internal.files import is_temporary, make_folder
from limbeck.errors import RunError

logger = logging.getLogger("limbeck")

LOCK = ".lock"


def holds_nothing(folder: Path, beside: Collection[str] = ()) -> bool:
    """Tell whether a folder is empty but for what a killed process of limbeck leaves, and the names in ``beside``.

    Hidden files of others count.
    """
    return all(path.name == LOCK or is_temporary(path) or path.name in beside for path in folder.iterdir())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``folder``; released when the block or the process ends, however it ends.

    The folder is made, and removed again if nothing was written into it.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = FileLock(folder / LOCK)
    try:
        make_folder(folder)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"Another process is writing into {folder}. Wait for it, stop it, or choose another --output."
        ) from None
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}. Choose another --output.") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty
            for path in missing:
                path.rmdir()


def wait_for_lock(folder: Path) -> AbstractContextManager[Any]:
    """Take the exclusive lock on `folder`, which is made; wait for the process that has it, and say so.

    The lock is held when this returns. It is released when the returned context ends, or with the process.
    """
    make_folder(folder)
    lock = FileLock(folder / LOCK)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        logger.info("Another process is writing %s; waiting for it.", folder)
        return lock.acquire()
