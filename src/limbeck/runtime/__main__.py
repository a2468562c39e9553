"""Serve an exported folder where only the run time is installed: ``limbeck-serve FOLDER``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import fields
from pathlib import Path

from .errors import FolderError, ServeError
from .folder import read_card
from .model import load
from .server.run import serve
from .server.settings import Settings


def main() -> None:
    """Serve the folder that was typed; a mistake is one message and exit code 1."""
    parser = argparse.ArgumentParser(
        prog="limbeck-serve", description="Serve a model that `limbeck export` wrote, with a page to try it."
    )
    parser.add_argument("folder", type=Path, help="The folder of an export to onnx or onnx-int8.")
    parser.add_argument("--teacher", type=Path, help="Such a folder of its teacher, for the page.")
    for one in fields(Settings):
        words = f"{one.metadata['about']} Default: {one.default}." if one.default else one.metadata["about"]
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default, help=words)
    given = vars(parser.parse_args())
    folder, teacher = given.pop("folder"), given.pop("teacher")
    logging.basicConfig(format="%(message)s")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        settings = Settings(**given)
        student, taught = load(folder, 1), None if teacher is None else load(teacher, 1)
        serve(student, settings, teacher=taught, card=read_card(folder), say=lambda text: print(text, flush=True))
    except (FolderError, ServeError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
