"""Read what W&B keeps of a run without a network: its file is a LevelDB log of protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE_HEADER, _BLOCK, _HEADER = 7, 32_768, struct.Struct("<IHB")  # a record's checksum, length and kind
_WHOLE, _LAST = 1, 4  # kinds; others are followed by more of the same record


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a ``.wandb`` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, record = file.read_bytes(), _FILE_HEADER, b""
    while place + _HEADER.size < len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER.size:  # too little for a header: padding
            place += left
            continue
        _, length, kind = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        record += data[place : place + length]
        place += length
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(record)
            record = b""
