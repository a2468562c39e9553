"""Define the errors that are the user's to fix: each says what was wrong, what was seen and what to do.

The command line prints them as one message without a traceback and exits with a non-zero status.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 1_800  # characters: about a screen


class LimbeckError(Exception):
    """Mark every error that limbeck raises on purpose.

    A message that quotes something endless keeps its start, which says what is wrong, and its end, which says what to
    do.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shorten(message, _LONGEST))


class RecipeError(LimbeckError):
    """Report a recipe or an option that cannot be used as written."""


class DataError(LimbeckError):
    """Report a data file that is missing, damaged or does not fit the task."""


class ModelError(LimbeckError):
    """Report a model or tokenizer that cannot be loaded, or two that do not fit together."""


class CacheError(LimbeckError):
    """Report a cache of the teacher's features that cannot be made, or was made for something else."""


class RunError(LimbeckError):
    """Report a run directory that cannot be written, resumed or read."""


class ExportError(LimbeckError):
    """Report an exported model that does not answer as the model it was made of."""


class MissingExtra(LimbeckError):
    """Report a missing package that an extra of limbeck installs."""


class Fault(RunError):
    """Report what went wrong in this process alone; where there are several, it must say so itself."""


class Stopped(BaseException):
    """Mark that a command was told to stop from outside.

    It is no error of the work that it ends: nothing that catches those, to go on with the next job, may catch it.
    ``advice`` says how to continue.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class Terminated(Stopped):
    """Report that the machine asked a command to stop (SIGTERM)."""


class Interrupted(Stopped):
    """Report that the user stopped a command (Ctrl-C)."""


def shorten(text: str, longest: int) -> str:
    """Leave out the middle of a text that has more than ``longest`` characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} more characters) … {text[-half:]}"


def unknown(kind: str, name: str, known: Iterable[str], remedy: str = "") -> str:
    """Return a message with the nearest known name: ``Unknown method 'minlmv2'. Did you mean 'minilmv2'?``"""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    return f"Unknown {kind} '{name}'.{guess} {remedy}".rstrip()
