"""Write GLUE folders in miniature: the files of a task as GLUE lays them out."""

from __future__ import annotations

from pathlib import Path

from helpers.tiny_tables import sentences

NLI = ("entailment", "neutral", "contradiction")
_BINARY = ("entailment", "not_entailment")
# folder; header and row of a labelled file; header and row of the test file; labels as the files spell them
_LAYOUTS = {
    "cola": ("CoLA", "", "gj04\t{label}\t\t{a}", "index\tsentence", "{i}\t{a}", ("0", "1")),
    "sst2": ("SST-2", "sentence\tlabel", "{a}\t{label}", "index\tsentence", "{i}\t{a}", ("0", "1")),
    "mrpc": (
        "MRPC",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{label}\t7\t8\t{a}\t{b}",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{i}\t7\t8\t{a}\t{b}",
        ("0", "1"),
    ),
    "stsb": (
        "STS-B",
        "index\tsentence1\tsentence2\tscore",
        "{i}\t{a}\t{b}\t{label}",
        "index\tsentence1\tsentence2",
        "{i}\t{a}\t{b}",
        ("0.0", "2.5", "5.000"),
    ),
    "qqp": (
        "QQP",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "{i}\t7\t8\t{a}\t{b}\t{label}",
        "id\tquestion1\tquestion2",
        "{i}\t{a}\t{b}",
        ("0", "1"),
    ),
    "mnli": (
        "MNLI",
        "index\tsentence1\tsentence2\tgold_label",
        "{i}\t{a}\t{b}\t{label}",
        "index\tsentence1\tsentence2",
        "{i}\t{a}\t{b}",
        NLI,
    ),
    "qnli": (
        "QNLI",
        "index\tquestion\tsentence\tlabel",
        "{i}\t{a}\t{b}\t{label}",
        "index\tquestion\tsentence",
        "{i}\t{a}\t{b}",
        _BINARY,
    ),
    "rte": (
        "RTE",
        "index\tsentence1\tsentence2\tlabel",
        "{i}\t{a}\t{b}\t{label}",
        "index\tsentence1\tsentence2",
        "{i}\t{a}\t{b}",
        _BINARY,
    ),
    "wnli": (
        "WNLI",
        "index\tsentence1\tsentence2\tlabel",
        "{i}\t{a}\t{b}\t{label}",
        "index\tsentence1\tsentence2",
        "{i}\t{a}\t{b}",
        ("0", "1"),
    ),
}
_FILES = {"train": True, "dev": True, "test": False}
_MNLI_FILES = {
    "train": True,
    "dev_matched": True,
    "dev_mismatched": True,
    "test_matched": False,
    "test_mismatched": False,
}


def write_glue(root: Path, name: str, rows: int = 12, without: tuple[str, ...] = ()) -> Path:
    """Write a task's folder into ``root`` and return ``root``; each file has other texts."""
    folder, header, row, test_header, test_row, labels = _LAYOUTS[name]
    (root / folder).mkdir(parents=True, exist_ok=True)
    for number, (file, labelled) in enumerate((_MNLI_FILES if name == "mnli" else _FILES).items()):
        if file in without:
            continue
        texts = [text for text, _ in sentences(2 * rows, seed=number)]
        lines = [header if labelled else test_header]
        lines += [
            (row if labelled else test_row).format(
                i=i, a=texts[2 * i], b=texts[2 * i + 1], label=labels[i % len(labels)]
            )
            for i in range(rows)
        ]
        (root / folder / f"{file}.tsv").write_text("".join(f"{line}\n" for line in lines if line))
    return root


# of a run of each task
SCORES = {
    "cola": {"mcc": 0.1},
    "sst2": {"accuracy": 0.9},
    "mrpc": {"accuracy": 0.8, "f1": 0.9},
    "stsb": {"pearson": 0.6, "spearman": 0.8},
    "qqp": {"accuracy": 0.7, "f1": 0.54},
    "mnli": {"accuracy": 0.84, "accuracy_mismatched": 0.80},
    "qnli": {"accuracy": 0.75},
    "rte": {"accuracy": 0.65},
    "wnli": {"accuracy": 0.4},
}
