"""See that a method, the models and the teachers of a recipe fit together, before anything is trained."""

from __future__ import annotations

from limbeck.distillation.file_teacher import why_not_taught
from limbeck.distillation.method import Method
from limbeck.errors import ModelError, RecipeError
from limbeck.protocols import Model
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.task import Task
from limbeck.training.team import Team


def check_team(recipe: Recipe, method: Method, team: Team) -> None:
    """Raise where teachers cannot give what a method asks of them."""
    needs, name = method.objective.needs().teacher, recipe.method.name
    for member in team.members:
        if member.no_head is not None and needs.logits:
            raise member.no_head
    changes = method.make_teacher is not None or method.run_student is not None
    if changes and (team.several or team.has_files):
        raise ModelError(
            f"{name} trains with the layers of its teacher, or trains the teacher itself: it needs one model. Name it "
            "as teacher.model, or take kd."
        )
    for member in team.members:
        if team.followed is None and member.answers is not None and (why := why_not_taught(member.answers, needs)):
            raise ModelError(f"{name}: {why}")
    if team.has_files and recipe.task.augment is not None:
        raise RecipeError(
            "task.augment makes other texts, to which a file has no answers. Leave it out, or name a model as the "
            "teacher (teacher.model)."
        )


def micro_batch_size(recipe: Recipe, method: Method) -> int | None:
    """Return how many examples are in memory at once, where a step relates more than that."""
    size, related = recipe.train.batch_size, recipe.train.relation_batch
    if related is None:
        return None
    if related < size:
        raise RecipeError(
            f"train.relation_batch ({related}) must be at least train.batch_size ({size}), the part that is in memory."
        )
    if method.make_teacher is not None or method.run_student is not None:
        raise RecipeError(
            f"{recipe.method.name} changes its models in every pass, so a step cannot be computed in parts. "
            "Leave train.relation_batch out."
        )
    return size


def check_gradient_checkpointing(recipe: Recipe, method: Method, student: Model) -> None:
    """Raise where a student's layers cannot be computed a second time as they were the first."""
    if not recipe.train.options.get("gradient_checkpointing"):
        return
    if method.make_teacher is not None or method.run_student is not None:
        raise RecipeError(
            f"{recipe.method.name} changes its models in every pass, so layers computed again would be others. "
            "Leave train.gradient_checkpointing out."
        )
    if not getattr(student, "supports_gradient_checkpointing", False):
        raise RecipeError(
            f"{student.config.model_type} models have no gradient checkpointing. Leave train.gradient_checkpointing "
            "out; train.relation_batch saves memory too."
        )


def why_not_cached(task: Task, method: Method) -> str:
    """Say why what a teacher computes cannot be kept; empty where it can."""
    if method.make_teacher is not None:
        return "The teacher of this method learns while it teaches, so what it computed before is out of date."
    if reason := task.why_not_cached():
        return reason
    if method.objective.needs().teacher.padding:
        return "This method counts padding (mask_padding=false), and a cache keeps the features of real tokens only."
    return ""
