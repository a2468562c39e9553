"""Define the commands that train: teachers, students, caches of a teacher, studies and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.options import (
    AllowCode,
    BatchSize,
    DataDir,
    Epochs,
    Keep,
    LearningRate,
    MaxLength,
    Output,
    Overrides,
    Resume,
    Seed,
    Student,
    TaskName,
    Teacher,
    choose_engine,
    load_pair_recipe,
    option_overrides,
    pair_overrides,
    split_words,
)
from limbeck.cli.render import answer, out, show_demo, show_plan, show_rivals_cost, show_run, show_study
from limbeck.cli.stopping import continued_by
from limbeck.errors import RecipeError, RunError


def finetune(
    task: Annotated[str, typer.Argument(help="A task's name: see 'limbeck tasks'.")],
    overrides: Overrides = None,
    model: Annotated[str, typer.Option(help="Model to start from: a folder or a name on the hub.")] = "",
    data_dir: DataDir = None,
    output: Output = None,
    resume: Resume = False,
    max_length: MaxLength = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
) -> None:
    """Fine-tune a model on a task: this makes a teacher."""
    from limbeck.recipes.recipe import load_recipe

    values: dict[str, Any] = {"task": {"name": task}, "student": {"model": model}, "method": {"name": "ft"}}
    if not model and not any(word.startswith(("student.", "student=")) for word in overrides or []):
        raise RecipeError("Which model should be fine-tuned? Add --model, e.g. --model bert-base-uncased.")
    if not model:
        values["student"] = {}
    flags = option_overrides(data_dir, max_length, epochs, batch_size, learning_rate, seed)
    _run(load_recipe(None, [*flags, *(overrides or [])], values), output, resume)


def distill(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A recipe file or shipped recipe, and overrides."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'limbeck methods', or module:function.")] = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    teacher: Teacher = None,
    student: Student = None,
    keep: Keep = None,
    output: Output = None,
    resume: Resume = False,
    max_length: MaxLength = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
) -> None:
    """Distil a teacher into a smaller student."""
    sources, overrides = split_words(words or [])
    if len(sources) > 1:
        raise RecipeError(f"One recipe at a time; seen: {', '.join(sources)}.")
    flags = option_overrides(data_dir, max_length, epochs, batch_size, learning_rate, seed)
    flags += pair_overrides(method, task, teacher, student, keep)
    _run(load_pair_recipe(sources[0] if sources else None, [*flags, *overrides], allow_code), output, resume)


def cache(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the cache; an older one is extended.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]... [KEY=VALUE]...", help="Recipes that will share it, and overrides."),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Instead of recipes; several times for several.")] = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    teacher: Teacher = None,
    student: Student = None,
    keep: Keep = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default), float16 or bfloat16: half the size.")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Run a teacher once and keep what one or more methods need of it, for any number of runs."""
    from limbeck._internal.files import readable_size
    from limbeck.training.cache_building import build_cache

    sources, overrides = split_words(words or [])
    flags = option_overrides(data_dir, max_length, batch_size=batch_size)
    flags += [f"teacher.cache_dtype={dtype}"] if dtype else []
    recipes = [
        load_pair_recipe(source, [*flags, *pair_overrides(name, task, teacher, student, keep), *overrides], allow_code)
        for source in sources or (None,)
        for name in method or (None,)
    ]
    with continued_by(f"The same command continues {output}."):
        wanted, needed = build_cache(recipes, output)
    out.print(f"{readable_size(needed)} in {output}: {', '.join(wanted.names())}", highlight=False)
    out.print(f"Use it with teacher.cache={output}", highlight=False)


def study(
    source: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or a name from 'limbeck studies'.")],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The study's folder. Default: studies/<name>.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, with their time and disk, and stop.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Local processes that share the work.")] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster (auto finds it), or 'local' to start one here.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each run. Results are the same bit for bit where this is.")
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Run methods x settings x seeds, choose, compare, and write tables. Started again, it does what is missing."""
    from limbeck._internal.files import file_name
    from limbeck.study.estimate import estimate_costs, estimate_rivals
    from limbeck.study.loading import find_study, load_study
    from limbeck.study.plan import Plan
    from limbeck.study.runner import run_study
    from limbeck.study.watch import watching

    loaded = load_study(source, overrides or [], allow_code=allow_code)
    file, variant = find_study(source)
    folder = output or Path("studies") / file_name(*filter(None, (file.stem, variant)))
    plan = Plan(loaded, folder)
    if dry_run:
        lines, rivals_seconds = estimate_costs(plan), estimate_rivals(plan)
        answer(plan=lines, selection=loaded.selection_note(), rivals_seconds=rivals_seconds if loaded.rivals else 0)
        show_plan(lines, loaded.selection_note())
        show_rivals_cost(loaded.rivals, rivals_seconds)
        return
    with continued_by(f"The same command continues {folder}."), watching(plan.count_jobs_left()) as watcher:
        results = run_study(loaded, folder, choose_engine(workers, ray, threads), watcher)
    show_study(folder)
    missing = [entry for entry in results["entries"] if entry["missing"]]
    if missing:
        first, count = missing[0], sum(entry["missing"] for entry in missing)
        raise RunError(
            f"{count} runs failed, the first of {first['label']} on {first['task']}: {first['why'].rstrip('.')}. "
            f"See {folder / 'failures'}; the same command tries them again."
        )


def demo(
    task_dir: Annotated[Path | None, typer.Option(help="A GLUE task's folder, e.g. data/glue/RTE: real data.")] = None,
    model: Annotated[str | None, typer.Option(help="A pre-trained encoder to make the teacher from.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the run directories.")] = Path("demo-runs"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer texts, epochs and methods: a look at the whole job in a minute.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Fine-tune a teacher, distil it by the methods of the four papers, and print a table: offline, in minutes."""
    from limbeck.demo import run_demo

    with continued_by(f"The same command continues {output}."):
        done = run_demo(output, task_dir=task_dir, model=model, seed=seed, quick=quick)
    answer(output=output, rows=done.rows, report=done.report)
    show_demo(done.rows)
    out.print(f"Run directories: {output}", highlight=False)
    if done.report is not None:
        out.print(f"Report: {done.report}", highlight=False)


def _run(recipe: Any, output: Path | None, resume: bool) -> None:
    from limbeck._internal.files import file_name
    from limbeck.training.execute import execute

    folder = output or Path("runs") / file_name(recipe.task.name, recipe.method.name, f"s{recipe.seed}")
    with continued_by(f"The same command with --resume continues {folder}."):
        run = execute(recipe, folder, resume=resume)
    show_run(run.path, run.metrics())
