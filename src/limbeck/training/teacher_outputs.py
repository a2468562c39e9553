"""Ask a teacher about validation data, once for all runs that share a cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from limbeck._internal.memo import Memo
from limbeck.distillation.cache_files import VALIDATION
from limbeck.distillation.ensemble import mixed_answers
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, ModelError
from limbeck.inference.doubts import Doubts, find_doubts, find_doubts_of_answers
from limbeck.inference.logits import check_finite_logits, example_name, predict_logits
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.models.features import Wanted
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.task import Logits, Task
from limbeck.training.assemble import Data, Parts, views
from limbeck.training.cache_policy import fingerprint_of
from limbeck.training.teaching import file_logits, say_what_is_missing
from limbeck.training.team import Member

logger = logging.getLogger("limbeck")

_WHO = "The teacher"  # in errors


def examine_teacher(
    recipe: Recipe, parts: Parts, data: Data, device: torch.device, *, warn_only: bool = False
) -> Logits | None:
    """Return what the teacher predicts for the validation data; raise where it is doubtful and nobody confirmed it.

    A method that asks nothing of its teacher goes on with a warning. None where a teacher is not scored. Of several,
    each is examined, and their mean is compared with them.
    """
    if recipe.teacher is None or parts.task.scored_by_loss:
        return None
    if parts.team.several:
        found = [examine_teacher(own, view, data, device, warn_only=warn_only) for own, view in views(recipe, parts)]
        return _compare_with_members(found, parts, data)
    member = parts.team.members[0]
    stops = not recipe.teacher.confirmed and not warn_only and bool(parts.needs.teacher)
    if stops:
        _require_no_doubts(_doubts(member, parts.task))  # before any time is spent
    logits = teacher_logits(recipe, parts, data, device)
    if logits is None and member.answers is not None:
        say_what_is_missing(member.answers, parts.task, "validation")
    scores = None if logits is None else parts.task.score(logits, data.splits["validation"])
    majority = parts.task.majority(data.splits["train"], data.splits["validation"])
    doubts = _doubts(member, parts.task, scores, majority)
    if stops:
        _require_no_doubts(doubts)
    if not recipe.teacher.confirmed:
        doubts.warn()
    return logits


def _doubts(
    member: Member,
    task: Task,
    scores: Mapping[str, float] | None = None,
    majority: Mapping[str, float] | None = None,
) -> Doubts:
    if member.answers is not None:
        return find_doubts_of_answers(member.answers, task, scores, majority)
    assert member.model is not None
    return find_doubts(member.block.source, member.model.config, task, scores, majority)


def _require_no_doubts(doubts: Doubts) -> None:
    if seen := doubts.against_teaching():
        raise ModelError(f"{seen} To learn from this teacher all the same, add teacher.confirmed=true.")


def _together(found: Sequence[Logits | None], parts: Parts) -> Logits | None:
    """Return the mean of what several teachers predict; None where one of them does not answer all."""
    known = [logits for logits in found if logits is not None]
    weights = [member.weight for member in parts.team.members]
    return mixed_answers(known, weights, parts.task.problem) if len(known) == len(found) else None


def _compare_with_members(found: Sequence[Logits | None], parts: Parts, data: Data) -> Logits | None:
    """Return what several teachers predict together; warn where that is no better than what the best one does."""
    logits = _together(found, parts)
    if logits is None:
        return None
    metric, validation = parts.task.metrics[0], data.splits["validation"]
    alone = {
        member.block.source: parts.task.score(answers, validation)[metric]
        for member, answers in zip(parts.team.members, found, strict=True)
    }
    together = parts.task.score(logits, validation)[metric]
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    best = max(alone, key=lambda name: sign * alone[name])
    said = ", ".join(f"{name} {readable_score(metric, score)}" for name, score in alone.items())
    message = f"The teachers together: {metric} {readable_score(metric, together)} on validation; alone: {said}."
    if sign * together > sign * alone[best]:
        logger.info("%s", message)
    else:
        logger.warning("%s Together they are no better than %s, which costs less.", message, best)
    return logits


def teacher_logits(recipe: Recipe, parts: Parts, data: Data, device: torch.device) -> Logits | None:
    """Return what the teacher predicts for the validation data; runs that share a cache compute it once.

    Of several teachers, the mean of their probabilities. None where a file does not have all of the answers.
    """
    assert recipe.teacher is not None
    if parts.team.several:
        return _together([teacher_logits(own, view, data, device) for own, view in views(recipe, parts)], parts)
    if (answers := parts.team.members[0].answers) is not None:
        return file_logits(answers, parts.task, "validation")
    teacher = parts.require_teacher()
    validation = data.splits["validation"]
    home = recipe.teacher.cache_folder
    if parts.method.make_teacher is None and home is not None:
        try:
            cache = split_cache(parts, data, "validation", home)
            cache.fill(LiveTeacher(teacher), data.collate, data.batch_size, Wanted(logits=True), device)
        except CacheError as error:  # it would have saved time; the results of a long run must not depend on it
            logger.warning("%s", error)
        else:
            logits = cache.logits()
            check_finite_logits(logits, _WHO, lambda row: example_name(validation, row))
            return logits

    def ask() -> Logits:
        return predict_logits(
            teacher.to(device), validation, data.collate, data.batch_size, "evaluate the teacher", who=_WHO
        )

    about = (fingerprint_of(parts, data, "validation"), data.batch_size, data.collate.pad_to, str(device))
    return _ANSWERS.get(json.dumps([*about, torch.get_num_threads()]), ask)


# The runs of a study ask the same teacher about the same texts.
_ANSWERS = Memo[Logits](4)


def split_cache(parts: Parts, data: Data, split: str, home: Path) -> FeatureCache:
    """Open a cache for what the teacher computes beside a run's training, in a folder of its own inside ``home``."""
    made_for = fingerprint_of(parts, data, split)
    folder = home / VALIDATION / f"{made_for['teacher'][:8]}-{made_for['data'][:8]}"
    return FeatureCache(folder, data.splits[split], made_for)
