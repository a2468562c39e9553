"""Ask exported models by numpy, onnxruntime and tokenizers alone: neither torch nor transformers is needed.

``load(folder).predict(texts)`` returns labels and scores. The same code is the package ``limbeck_runtime`` of the
distribution limbeck-runtime, so that all imports in here are relative; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import Answer as Answer
    from .errors import AnswerError as AnswerError
    from .errors import FolderError as FolderError
    from .errors import InputError as InputError
    from .errors import ServeError as ServeError
    from .folder import About as About
    from .model import Model as Model
    from .model import Predictions as Predictions
    from .model import load as load

_PLACES = {
    "answers": ("Answer",),
    "errors": ("AnswerError", "FolderError", "InputError", "ServeError"),
    "folder": ("About",),
    "model": ("Model", "Predictions", "load"),
}
__all__ = [name for names in _PLACES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
