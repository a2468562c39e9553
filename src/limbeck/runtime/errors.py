"""Define what may be wrong with a folder, with texts, or with a place to serve at; each message says what to do."""

from __future__ import annotations


class FolderError(Exception):
    """Report a folder that holds no model that can be asked."""


class InputError(Exception):
    """Report texts that a model cannot answer."""


class AnswerError(Exception):
    """Report a model that answers with what is no number."""


class ServeError(Exception):
    """Report an address or a setting with which nothing can be served."""
