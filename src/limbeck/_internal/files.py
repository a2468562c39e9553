"""Write files that appear whole or not at all and outlive a power cut: written under a temporary name, then renamed.

What has a new name is on the disk before: the content first, then the rename, and only then is anything older removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from limbeck.errors import RunError

_PART = 1 << 20  # bytes that are read at a time
_NEW = ".limbeck-new-"  # before the names of what is being written
_OLD = ".limbeck-old-"  # before the name of a folder while another one takes its place
# of file systems that cannot do it (network shares, some in user space), and of folders that may not be opened
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)


@contextmanager
def replacing(file: Path, *, durable: bool = True, overwrite: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``file`` when the block ends without an error.

    Without ``durable``, a power cut may leave the file empty: for what is written often and can be had again. Without
    ``overwrite``, a file that appeared meanwhile is left alone; what was written is then kept beside it.
    """
    if file.exists() and not file.is_file():
        raise RunError(f"{file} is a folder or a device, which a file would replace. Give the name of a file.")
    make_folder(file.parent)
    # The suffix stays: writers choose a format by it.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=_NEW, suffix=file.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        if durable:
            _sync(temporary)
        if overwrite:
            os.replace(temporary, file)
        else:
            _add(temporary, file)
        if durable:
            _sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _add(written: Path, file: Path) -> None:
    """Give ``written`` the name ``file`` unless that is taken; then another name, and an error that says so."""
    if _took_free_name(written, file):
        return
    number = 1
    while not _took_free_name(written, kept := file.with_name(f"{file.stem}-{number}{file.suffix}")):
        number += 1
    _sync(file.parent)
    raise RunError(f"{file} appeared meanwhile and was not replaced. What was to be written there is in {kept}.")


def _took_free_name(written: Path, file: Path) -> bool:
    try:
        os.link(written, file)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        os.replace(written, file)
    return True


@contextmanager
def replacing_folder(folder: Path, *, check: Callable[[], None] | None = None) -> Iterator[Path]:
    """Do the same for a folder. An older one of that name steps aside for the new one, and is removed after that.

    ``check`` is called just before, and raises where the older one must stay.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, which a folder would replace. Give another name.")
    make_folder(folder.parent)
    restore_folder(folder)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{_NEW}{folder.name}-"))
    try:
        yield temporary
        _set_modes(temporary)
        make_durable(temporary)
        if check is not None:
            check()
        _swap(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    while new.exists():
        if os.path.lexists(folder):
            os.replace(folder, _aside(folder))
        try:
            os.replace(new, folder)
        except OSError as error:
            restore_folder(folder)
            # a reader may have found no folder and brought the older one back
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    _sync(folder.parent)
    restore_folder(folder)


def restore_folder(folder: Path) -> None:
    """Bring back an older folder if a killed process left none in its place; remove it if a newer one is there."""
    if not folder.name or not os.path.lexists(old := _aside(folder)):  # "." and "/" have no name
        return
    if not os.path.lexists(folder):
        os.replace(old, folder)
        _sync(folder.parent)
        return
    _sync(folder.parent)  # the new one may have got its name just before a power cut
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{_OLD}{folder.name}")


def is_temporary(path: Path) -> bool:
    """Tell by its name whether a file or folder is half of something: what a killed process was writing."""
    return path.name.startswith(_NEW)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing into ``folder``; only for who has it locked."""
    for path in filter(is_temporary, list(folder.iterdir())):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def make_durable(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk under its name."""
    if path.is_dir():
        for parent, _, files in os.walk(path, topdown=False):
            for name in files:
                _sync(Path(parent, name))
            _sync(Path(parent))
    else:
        _sync(path)
    _sync(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, that outlives a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    if not path.is_dir() and not path.is_file():  # a broken link, a device
        return
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _set_modes(folder: Path) -> None:
    """Let others read what the umask allows: some libraries write files for their owner alone."""
    mask = _umask()
    for parent, _, files in os.walk(folder):
        os.chmod(parent, 0o777 & ~mask)
        for name in files:
            if stat.S_ISREG(os.lstat(os.path.join(parent, name)).st_mode):
                os.chmod(os.path.join(parent, name), 0o666 & ~mask)


def write_text(file: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file whole or not at all, in UTF-8."""
    with replacing(file, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def is_same_file(first: Path, second: Path) -> bool:
    """Tell whether two paths are one file, also through links."""
    with suppress(OSError):
        return first.samefile(second)
    return False


def expand_home(path: str | Path) -> Path:
    """Put the home folder in the place of a leading ``~``; the name of a file that only begins with one stays."""
    return Path(os.path.expanduser(path))


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


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file of any size, as hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(_PART):
            digest.update(part)
    return digest.hexdigest()
