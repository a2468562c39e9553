"""limbeck: distil pre-trained language models through their hidden representations.

The names below are the public ones; each is imported when it is first used, so that ``limbeck --help`` does not wait
for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from limbeck.cache import FeatureCache
    from limbeck.capture import Capture
    from limbeck.deploy.predict import predict_file
    from limbeck.distiller import Distiller
    from limbeck.evaluation import evaluate
    from limbeck.features import Features, Needs, Wanted
    from limbeck.layers import layer_map
    from limbeck.method import Method
    from limbeck.methods import METHODS
    from limbeck.methods.ft import TaskLoss
    from limbeck.methods.kd import SoftLogits
    from limbeck.objective import Objective, Term
    from limbeck.pair import Pair
    from limbeck.projectors import projector
    from limbeck.recipe import Recipe, load_recipe
    from limbeck.run import execute
    from limbeck.run_directory import RunDirectory
    from limbeck.student import keep_layers
    from limbeck.tasks import load_task
    from limbeck.teacher import CachedTeacher, LearningTeacher, LiveTeacher

_HOMES = {
    "CachedTeacher": "teacher",
    "Capture": "capture",
    "Distiller": "distiller",
    "FeatureCache": "cache",
    "Features": "features",
    "LearningTeacher": "teacher",
    "LiveTeacher": "teacher",
    "METHODS": "methods",
    "Method": "method",
    "Needs": "features",
    "Objective": "objective",
    "Pair": "pair",
    "Recipe": "recipe",
    "RunDirectory": "run_directory",
    "SoftLogits": "methods.kd",
    "TaskLoss": "methods.ft",
    "Term": "objective",
    "Wanted": "features",
    "evaluate": "evaluation",
    "execute": "run",
    "keep_layers": "student",
    "layer_map": "layers",
    "load_recipe": "recipe",
    "load_task": "tasks",
    "predict_file": "deploy.predict",
    "projector": "projectors",
}

__all__ = [
    "METHODS",
    "CachedTeacher",
    "Capture",
    "Distiller",
    "FeatureCache",
    "Features",
    "LearningTeacher",
    "LiveTeacher",
    "Method",
    "Needs",
    "Objective",
    "Pair",
    "Recipe",
    "RunDirectory",
    "SoftLogits",
    "TaskLoss",
    "Term",
    "Wanted",
    "evaluate",
    "execute",
    "keep_layers",
    "layer_map",
    "load_recipe",
    "load_task",
    "predict_file",
    "projector",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"limbeck.{_HOMES[name]}"), name)
    if name == "similarity":
        return importlib.import_module("limbeck.similarity")
    raise AttributeError(f"module 'limbeck' has no attribute '{name}'")
