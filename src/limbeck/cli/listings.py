"""Define the commands that list what there is, and those that look before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from limbeck.cli.options import AllowCode, DataDir, MaxLength, Overrides, option_overrides
from limbeck.cli.render import answer, out, show_options, show_pairs, show_profile
from limbeck.errors import LimbeckError, RecipeError, unknown

if TYPE_CHECKING:
    from limbeck.recipes.recipe import Recipe


def studies() -> None:
    """List the studies that come with limbeck."""
    from limbeck.study.loading import list_studies

    listing = list_studies()
    answer(studies=listing)
    show_pairs(listing, "Studies", "limbeck study NAME teacher.model=… task.data_dir=…")


def profile(
    task: Annotated[str, typer.Argument(help="A task's name: see 'limbeck tasks'.")],
    overrides: Overrides = None,
    model: Annotated[str, typer.Option(help="The model whose tokenizer counts: a folder or a name on the hub.")] = "",
    data_dir: DataDir = None,
    max_length: MaxLength = None,
) -> None:
    """Show what a task's data hold: rows, lengths, what would be cut, labels, and what to look into."""
    from limbeck.recipes.recipe import load_task_block

    if not model:
        raise RecipeError("Which model will read the texts? Add --model, e.g. --model bert-base-uncased.")
    block = load_task_block({"name": task}, [*option_overrides(data_dir, max_length), *(overrides or [])])

    from limbeck.models.loading import load_tokenizer
    from limbeck.tasks import load_task
    from limbeck.tasks.profile import profile as look_at

    length = None if block.max_length == "auto" else block.max_length
    show_profile(look_at(load_task(block.name, **block.options), load_tokenizer(model), length))


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method and its options.")] = None,
    student: Annotated[str, typer.Option(help="Compute the cost of the loss for this model: a folder or a name.")] = "",
    teacher: Annotated[str, typer.Option(help="The teacher, where it is not the student's size.")] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Of the cost: texts of a batch.")] = 32,
    length: Annotated[int, typer.Option(min=1, help="Of the cost: tokens of each text.")] = 128,
) -> None:
    """List the methods, or show one with its options, and what its loss costs."""
    import inspect

    from limbeck.methods import METHODS, allow_method, find_method

    if name is None:
        listing = {key: (inspect.getdoc(method) or "").partition("\n")[0] for key, method in METHODS.items()}
        answer(methods=listing)
        show_pairs(listing, "Methods", "limbeck methods NAME shows the equation and the options")
        return
    allow_method(name)  # typed here
    shown = show_options(find_method(name), "option")

    from limbeck.methods.costs import formula_of, loss_cost

    formula = formula_of(name)
    if formula:
        out.print(f"Operations of the loss, without the backward pass: {formula}", highlight=False)
        out.print("B texts of L tokens; D the widths of student (D_s) and teacher (D_t) together; P pairs of layers.")
    cost = None
    if student:
        from limbeck.distillation.pair import ModelShape, Pair

        pair = Pair(ModelShape.named(student), ModelShape.named(teacher or student), "classification", 2)
        cost = loss_cost(name, pair, batch_size, length)
    if cost is not None:
        relations = f"{cost.bytes / 1e6:.3g} MB of relations"
        out.print(f"{batch_size} texts of {length} tokens: {cost.flops / 1e9:.3g} GFLOPs, {relations}", highlight=False)
    numbers = None if cost is None else {"flops": cost.flops, "bytes": cost.bytes}
    answer(name=name, **shown, operations=formula, cost=numbers)


def tasks(name: Annotated[str | None, typer.Argument(help="Show one task and its options.")] = None) -> None:
    """List the tasks, or show one with its options."""
    from limbeck.tasks import TASKS, describe, find_task

    if name is None:
        listing = {key: describe(key) for key in TASKS}
        answer(tasks=listing)
        show_pairs(listing, "Tasks", "limbeck tasks NAME shows the options")
        return
    answer(name=name, **show_options(find_task(name), "option (task.…)"))


def recipes(
    part: Annotated[str, typer.Argument(help="Only those whose name contains this, e.g. tinybert or mrpc.")] = "",
) -> None:
    """List the recipes that come with limbeck."""
    from limbeck.recipes.files import shipped_recipes

    shipped = shipped_recipes()
    listing = {name: recipe.about for name, recipe in shipped.items() if part in name}
    if not listing:
        raise RecipeError(unknown("recipe", part, shipped, "Run 'limbeck recipes' for all of them."))
    answer(recipes=listing)
    show_pairs(listing, "Recipes", "limbeck distill NAME teacher.model=… task.data_dir=…")


def validate(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe file (of one that holds several: all, or FILE/ROW), or a shipped recipe."),
    ],
    overrides: Overrides = None,
    allow_code: AllowCode = False,
) -> None:
    """Check a recipe, or every row of a file, without running it; every mistake is reported at once."""
    from limbeck.recipes.files import rows_of

    words = overrides or []
    rows = rows_of(recipe)
    if not rows:
        loaded = _checked(recipe, words, allow_code)
        out.print(loaded.to_yaml(), highlight=False, end="")
        _show_valid("valid", [loaded])
        return
    checked, wrong = [], []
    for row in rows:
        try:
            checked.append(_checked(row, words, allow_code))
        except LimbeckError as error:
            wrong.append(str(error))
    if wrong:
        raise RecipeError("\n".join([f"{len(wrong)} of the {len(rows)} recipes in {recipe} are not valid.", *wrong]))
    _show_valid(f"{len(rows)} recipes are valid", checked)


def _checked(recipe: str, words: list[str], allow_code: bool) -> Recipe:
    from limbeck.recipes.recipe import load_recipe, load_without_code

    loaded = load_recipe(recipe, words, allow_code=True) if allow_code else load_without_code(recipe, words)
    for precision in {stage.train.precision for stage in loaded.split()} - {"auto", "float32"}:
        from limbeck.training.precision import check_precision

        check_precision(precision)
    return loaded


def _show_valid(verdict: str, recipes: list[Recipe]) -> None:
    from limbeck.recipes.method_block import foreign_code

    stages = [stage for recipe in recipes for stage in recipe.split()]
    foreign = dict.fromkeys(filter(None, (foreign_code(stage.method) for stage in stages)))
    values = [recipe.model_dump(mode="json", by_alias=True, exclude_none=True) for recipe in recipes]
    answer(valid=True, recipes=values, not_looked_at=list(foreign))
    out.print(verdict + " but for code that was not looked at" * bool(foreign), style="green")
    for name in foreign:
        note = f"{name} is code that the file names and was not imported: its options were not checked."
        out.print(f"{note} --allow-code checks them too, if you trust it.", highlight=False)


def doctor() -> None:
    """Print versions, devices and what is reachable, and warn of what makes this machine slow.

    It is the first thing to send with a question.
    """
    from limbeck.cli.doctor import diagnose
    from limbeck.cli.slow_setups import find_slow_setups

    setup, warnings = dict(diagnose()), find_slow_setups()
    answer(setup=setup, warnings=warnings)
    show_pairs(setup)
    for warning in warnings:
        out.print(f"Slow: {warning}", style="yellow", highlight=False, soft_wrap=True)
