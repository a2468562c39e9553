"""Write files that appear whole or not at all: under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limbeck.errors import RunError


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``file`` when the block ends without an error."""
    if file.exists() and not file.is_file():
        raise RunError(f"{file} is a folder or a device, which a file would replace. Give the name of a file.")
    file.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays: writers choose a format by it.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-", suffix=file.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Do the same for a folder; an older one of that name is removed only when the new one is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(file: Path, text: str) -> None:
    """Write a text file whole or not at all, in UTF-8."""
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def file_name(*names: str) -> str:
    """Join names of tasks and methods to the name of one file or folder, without slashes: ``glue-rte-kd-s0``."""
    name = re.sub(r"[/\\:\x00-\x1f]", "-", "-".join(names))
    return f"_{name}" if name.startswith(".") else name


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def readable_size(number: float) -> str:
    """Write a number of bytes for people: ``134.0 MB``."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"
