"""Recognise the errors of a machine that has too little: memory, threads, room on a disk."""

from __future__ import annotations

import errno
import re

# How torch, numpy, tokenizers, safetensors, onnxruntime and Python itself say that there is no more memory.
_NO_MEMORY = (
    "allocate memory",
    "allocate buffer",
    "memory allocation",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
    "start new thread",
    "os error 12",
)
_NO_ROOM = re.compile(r"No space left|Disk quota exceeded|(?:os error|code:) (?:28|122)\b")  # as libraries say it


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, or that the system gives no more threads."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(words in str(error) for words in _NO_MEMORY)


def disk_full(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, means that nothing more can be written to a disk."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _NO_ROOM.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
