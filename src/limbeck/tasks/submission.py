"""Write the folder of files that an official evaluation takes; those of GLUE's server also as one archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from limbeck._internal.files import replacing, write_text
from limbeck.errors import RecipeError

GLUE_FILES = (
    *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv"),
    *("RTE.tsv", "WNLI.tsv", "AX.tsv"),
)
ARCHIVE = "submission.zip"
HEADER = "index\tprediction"


def check_folder(folder: Path) -> None:
    """Raise an error if ``folder`` is a file or holds data under a name of a submission, before anything is written."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; --submission must be a folder.")
    for name in glue_files(folder)[0]:
        with (folder / name).open("rb") as file:
            if file.readline().strip() != HEADER.encode():  # AX/AX.tsv is a name of the diagnostic data, too
                raise RecipeError(f"{folder / name} is no earlier submission. Choose another folder for --submission.")


def write_submission(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files beside those of other tasks; GLUE's archive then holds all of its files that are there."""
    for name, content in files.items():
        write_text(folder / name, content)
    if any(name in GLUE_FILES for name in files):
        _write_archive(folder, glue_files(folder)[0])


def glue_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return which of GLUE's files a folder holds, and which are missing."""
    there = [name for name in GLUE_FILES if (folder / name).is_file()]
    return there, [name for name in GLUE_FILES if name not in there]


def _write_archive(folder: Path, names: list[str]) -> None:
    with replacing(folder / ARCHIVE) as temporary, ZipFile(temporary, "w") as archive:
        for name in sorted(names):
            entry = ZipInfo(name)  # dated 1980: the same files make the same archive
            entry.compress_type = ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (folder / name).read_bytes())
