"""Write docs/evidence.md, its pictures and README's table from ``results/``: ``make evidence-page``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence.figures import draw
from evidence.results import ABLATIONS, MAIN, OTHERS, ResultFiles
from evidence.tables import (
    GROUPS,
    ablation_tables,
    claims_table,
    dev_table,
    main_table,
    readme_table,
    settings_table,
    terms_table,
    times_table,
)
from limbeck._internal.files import write_text
from limbeck.compare.tables import Table, render
from limbeck.study.description import short_task

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- evidence: make evidence-page -->", "<!-- end of evidence -->"
PICTURES = "evidence"  # beside the page
MARKS_NOTE = (
    "†: better than `ft`, ‡: better than `kd`; ↓ behind a mark: worse (p < 0.05, Welch's t-test over seeds, "
    "two-sided, Holm over all comparisons of the table)."
)


def main() -> None:
    """Write the page of the project at ``--root``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder, by default this one")
    write(parser.parse_args().root)


def write(root: Path) -> None:
    """Write everything under ``root`` that shows results, from its results alone."""
    results = ResultFiles(root / "results")
    if not results.tasks(MAIN):
        raise SystemExit(f"results/{MAIN} is empty. 'python -m evidence.run TASK' fills it.")
    docs = root / "docs"
    (docs / PICTURES).mkdir(exist_ok=True)
    pictures = draw(results, docs / PICTURES)
    for old in set((docs / PICTURES).iterdir()) - {file for _, file in pictures}:
        old.unlink()
    images = "\n".join(f"![{drawn.alt}]({PICTURES}/{file.name})\n\n{drawn.caption}\n" for drawn, file in pictures)
    findings = (root / "evidence" / "findings.md").read_text(encoding="utf-8")
    write_text(docs / "evidence.md", page_text(results, images, findings))
    readme = root / "README.md"
    block = f"{_markdown(readme_table(results))}\n\n{MARKS_NOTE}"
    write_text(readme, _inserted(readme.read_text(encoding="utf-8"), block))


def page_text(results: ResultFiles, images: str, findings: str) -> str:
    """Compose the page as Markdown."""
    parts = [
        "# Evidence: the papers' claims on real data",
        "<!-- written by make evidence-page from results/; change evidence/ instead -->",
        _what_was_done(results),
        "## Scores",
        _markdown(main_table(results)),
        f"- Mean ± standard deviation over seeds, on the validation data, in hundredths.\n- {MARKS_NOTE}\n"
        "- *paper*: what the paper reports of its own models (BERT-base or larger to 6 or 12 layers), by the same "
        "metric; these are other models, and only the order of methods can be compared.\n"
        "- *missing*: not run yet.",
        images.strip(),
        "## What the papers claim, and what happened here",
        _markdown(claims_table(results)),
        "A claim held (*yes*) where at least one difference is beyond chance (p < 0.05, Welch's t-test over seeds, "
        "Holm over the claim's tests) and none of those points the other way; *no* is the opposite; *not decided* is "
        "all else. With four seeds only differences of more than about two standard deviations can be seen.",
        "## What was found",
        findings.strip(),
    ]
    parts.append("## Ablations")
    ablations = ablation_tables(results)
    for table in ablations:
        parts += [f"### {table.title}", _markdown(table)]
    if missing := [title for title in GROUPS if title not in {table.title for table in ablations}]:
        parts += ["Not run yet:", "\n".join(f"- {title}" for title in missing)]
    parts += [
        "## Do the losses do what they should?",
        "The terms of each loss without their weights, at the first and the last steps that were logged (means over "
        "seeds), and how often the student answers as its teacher, in percent (of regression: the correlation).",
        _markdown(terms_table(results)),
        "The same terms on validation data, for the student before training, those of `ft` and `kd`, and the method's "
        "own (first reported seed). *pull*: the norm of the gradient of the term with its weight, on the student "
        "before training. What a method prepares from the training data (FSD's memory) is left out.",
        _markdown(dev_table(results)),
        "## Settings",
        _markdown(settings_table(results)),
        "## Time",
        "Minutes of training of one run, in one thread beside another run on two cores; the teacher's features are "
        "cached, and computed once for all methods.",
        _markdown(times_table(results)),
        "## Where the numbers come from",
        _sources(results),
    ]
    return "\n\n".join(parts) + "\n"


def _what_was_done(results: ResultFiles) -> str:
    first = results.files[MAIN, results.tasks(MAIN)[0]]
    file, method = first.values, next(iter(first.methods.values())).values
    teacher = file["teacher"]
    trained, taught = teacher["recipe"]["train"], method["recipe"]["train"]
    sizes = [f"{number / 1e6:.1f} M" for number in (teacher["parameters"], method["runs"][0]["parameters"])]
    return (
        "Teacher: a pre-trained encoder of 12 layers and width 384 "
        f"({Path(teacher['recipe']['student']['model']).name}, {sizes[0]} parameters), "
        f"fine-tuned on each task for {trained['epochs']:g} epochs (batches of "
        f"{trained['batch_size']}, learning rate {trained['learning_rate']:g}). Students: its layers "
        f"`{method['recipe']['student']['keep']}` ({sizes[1]} parameters), {taught['epochs']:g} epochs, batches of "
        f"{taught['batch_size']}. The papers' models (BERT-base and -large, on GPUs) are out of reach of two CPU "
        f"cores; their claims are not. {file['selection']} Weights of the papers' grids were scaled where a loss would "
        "have drowned the others; the tables at the end say what was tried."
    )


def _sources(results: ResultFiles) -> str:
    rows = [_source(study, file.values) for (study, _), file in sorted(results.files.items())]
    return (
        "Every number above is computed from these files, each with the recipe, the seeds and the commit of its runs, "
        "by `make evidence-page`. `python -m evidence.run TASK --data FOLDER` does all of it again, from the data on; "
        f"`--study` names what else there is: {', '.join(f'`{name}`' for name in (OTHERS, *ABLATIONS))}.\n\n"
        "| file | seeds | commits | runs |\n|---|---|---|---:|\n" + "\n".join(rows)
    )


def _source(study: str, values: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, values["seeds"]))
    commits = ", ".join(f"`{commit[:10]}`" for commit in values["commits"])
    runs = sum(len(method["runs"]) for method in values["methods"])
    return f"| `results/{study}/{short_task(values['task'])}.json` | {seeds} | {commits} | {runs} |"


def _markdown(table: Table) -> str:
    return render(replace(table, title=""), "markdown").strip()


def _inserted(text: str, block: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md needs the lines {BEGIN} and {END}, between which its table goes.")
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


if __name__ == "__main__":
    main()
