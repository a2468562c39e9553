"""Errors that are the user's to fix: each says what was wrong, what was seen and what to do.

The command line prints them as one message without a traceback and exits with a non-zero status.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 1_800  # characters: about a screen


class LimbeckError(Exception):
    """Base of every error that limbeck raises on purpose.

    A message that quotes something endless keeps its start, what is wrong, and its end, what to do.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message, _LONGEST))


class RecipeError(LimbeckError):
    """A recipe or an option cannot be used as written."""


class DataError(LimbeckError):
    """A data file is missing, damaged or does not fit the task."""


class ModelError(LimbeckError):
    """A model or tokenizer cannot be loaded, or two of them do not fit together."""


class CacheError(LimbeckError):
    """A cache of the teacher's features cannot be made, or was made for something else."""


class RunError(LimbeckError):
    """A run directory cannot be written, resumed or read."""


class ExportError(LimbeckError):
    """An exported model does not answer as the model it was made of."""


class MissingExtra(LimbeckError):
    """A package is needed that an extra of limbeck installs."""


class Fault(RunError):
    """What went wrong in one process, of several perhaps, so that it must say so itself."""


class Terminated(LimbeckError):
    """The machine asked a run to stop."""


class Interrupted(LimbeckError):
    """The user stopped a run."""


def shortened(text: str, longest: int) -> str:
    """A text without its middle, where that is too long to be read."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} more characters) … {text[-half:]}"


def unknown(kind: str, name: str, known: Iterable[str], remedy: str = "") -> str:
    """``Unknown method 'minlmv2'. Did you mean 'minilmv2'? Run 'limbeck methods'.``"""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    return f"Unknown {kind} '{name}'.{guess} {remedy}".rstrip()
