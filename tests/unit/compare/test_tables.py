# ruff: noqa: RUF001 - the tables that are expected hold dashes and signs
"""Check that one table reads the same in four formats, whatever its labels hold."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from limbeck.compare.tables import Cell, Table, check_format, format_of, render, show_table
from limbeck.errors import RecipeError

SMALL = Table(
    title="glue/rte, validation data",
    head=("method", "parameters", "macro_f1"),
    rows=(
        (Cell("teacher"), Cell("109.5 M"), Cell("75.00")),
        (Cell("ft"), Cell("67.0 M"), Cell("61.00 ± 1.00")),
        (Cell("kd"), Cell("67.0 M"), Cell("71.00 ± 1.00", bold=True, marks="†")),
        (Cell("fsd_il"), Cell("67.0 M"), Cell("58.00 ± 0.50", marks="†↓‡")),
        (Cell("a | b"), Cell(""), Cell("–")),
    ),
    rules=frozenset({1}),
    notes=("Mean ± standard deviation over 3 seeds.", "†: better than ft (p < 0.05)."),
)

TERMINAL = """\
glue/rte, validation data
┏━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┓
┃ method  ┃ parameters ┃        macro_f1 ┃
┡━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━┩
│ teacher │    109.5 M │           75.00 │
├─────────┼────────────┼─────────────────┤
│ ft      │     67.0 M │    61.00 ± 1.00 │
│ kd      │     67.0 M │   71.00 ± 1.00† │
│ fsd_il  │     67.0 M │ 58.00 ± 0.50†↓‡ │
│ a | b   │            │               – │
└─────────┴────────────┴─────────────────┘
Mean ± standard deviation over 3 seeds.
†: better than ft (p < 0.05).
"""

MARKDOWN = r"""**glue/rte, validation data**

| method  | parameters |          macro_f1 |
| ------- | ---------: | ----------------: |
| teacher |    109.5 M |             75.00 |
| ft      |     67.0 M |      61.00 ± 1.00 |
| kd      |     67.0 M | **71.00 ± 1.00**† |
| fsd_il  |     67.0 M |   58.00 ± 0.50†↓‡ |
| a \| b  |            |                 – |

- Mean ± standard deviation over 3 seeds.
- †: better than ft (p < 0.05).
"""

LATEX = r"""\begin{table}
  \centering
  \caption{glue/rte, validation data}
  \begin{tabular}{lrr}
    \toprule
    method & parameters & macro\_f1 \\
    \midrule
    teacher & 109.5 M & 75.00 \\
    \midrule
    ft & 67.0 M & 61.00 $\pm$ 1.00 \\
    kd & 67.0 M & \textbf{71.00 $\pm$ 1.00}\textsuperscript{\dag} \\
    fsd\_il & 67.0 M & 58.00 $\pm$ 0.50\textsuperscript{\dag$\downarrow$\ddag} \\
    a $|$ b &  & -- \\
    \bottomrule
  \end{tabular}
  \par\smallskip
  \begin{minipage}{\linewidth}
    \footnotesize
    Mean $\pm$ standard deviation over 3 seeds.\par
    \textsuperscript{\dag}: better than ft (p $<$ 0.05).\par
  \end{minipage}
\end{table}
"""

CSV = """\
method,parameters,macro_f1
teacher,109.5 M,75.00
ft,67.0 M,61.00 ± 1.00
kd,67.0 M,71.00 ± 1.00†
fsd_il,67.0 M,58.00 ± 0.50†↓‡
a | b,,–
"""

HOSTILE = (
    "a|b",
    "back\\slash",
    "\\| and \\\\",
    "x_y _z_",
    'comma, "quote"',
    "50% & $5 #1 {x} ~ ^",
    "[x] *y* `z` <b>",
    "--flag -- x",
    "line\nbreak\ttab\x1b[31m",
    "naïve 蒸留 модель 🙂",
    "α=0.5 – β…",
    "=1+1",
    "[bold]x[/bold] :smile:",
)


@pytest.mark.parametrize(
    ("form", "text"), [("terminal", TERMINAL), ("markdown", MARKDOWN), ("latex", LATEX), ("csv", CSV)]
)
def test_the_same_table_in_every_form(form, text):
    assert render(SMALL, form) == text


def test_columns_of_words_are_set_left():
    table = Table("", ("paper", "claim", "n"), ((Cell("000"), Cell("it helps"), Cell("1")),), left=2)
    assert render(table, "markdown") == (
        "| paper | claim    |   n |\n| ----- | -------- | --: |\n| 000   | it helps |   1 |\n"
    )
    assert r"\begin{tabular}{llr}" in render(table, "latex")
    assert render(table, "terminal").splitlines()[1] == "┃ paper ┃ claim    ┃ n ┃"


def test_the_best_is_bold_in_a_terminal():
    file = io.StringIO()
    show_table(SMALL, Console(file=file, force_terminal=True, color_system="standard", width=100))
    assert re.search(r"\x1b\[1m *71\.00 ± 1\.00†", file.getvalue())
    assert not re.search(r"\x1b\[1m *61\.00", file.getvalue())


def test_a_table_without_title_and_notes():
    table = Table("", ("x", "y"), ((Cell("a"), Cell("1")),))
    assert render(table, "markdown") == "| x   |   y |\n| --- | --: |\n| a   |   1 |\n"
    assert "caption" not in render(table, "latex") and "minipage" not in render(table, "latex")
    assert render(table, "terminal").startswith("┏")


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_come_back_as_they_were(label):
    _check_round_trips(label)


@given(st.text(max_size=30))
def test_any_label_comes_back_as_it_was(label):
    _check_round_trips(label)


def _check_round_trips(label):
    # what a row cannot hold becomes a blank
    expected = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", label).split())
    table = Table(label, ("head", label), ((Cell(label), Cell(label, bold=True, marks="†")),), notes=(label,))
    rows = list(csv.reader(io.StringIO(render(table, "csv", raw_csv=True))))
    assert rows == [["head", expected], [expected, f"{expected}†"]]

    lines = render(table, "markdown").split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("| head"))
    assert lines[start + 3 :] == ["", f"- {lines[start + 4][2:]}", ""]
    head, row = (_markdown_cells(lines[number]) for number in (start, start + 2))
    assert head == ["head", expected] and row == [expected, f"**{expected}**†" if expected else "†"]
    assert len(re.split(r"(?<!\\)\|", lines[start + 1])) == 4

    rows = re.findall(r"^    (.*) \\\\$", render(table, "latex"), flags=re.MULTILINE)
    assert [[_latex_text(cell) for cell in row.split(" & ")] for row in rows] == [
        ["head", expected],
        [expected, f"{expected}†"],
    ]
    assert not any(re.match(r"[\[*]", row) for row in rows)  # which \\ and \midrule would take for their own

    shown = render(table, "terminal")
    assert len(shown.split("\n")) == (1 if expected else 0) + 5 + 1 + 1


def _markdown_cells(line):
    cells = _split_on_bare_pipes(line)[1:-1]
    return [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell.strip(" ")) for cell in cells]


def _split_on_bare_pipes(line):
    """Split as a reader of GFM does: a backslash takes the next character with it."""
    cells, escaped = [""], False
    for letter in line:
        if letter == "|" and not escaped:
            cells.append("")
            continue
        cells[-1] += letter
        escaped = letter == "\\" and not escaped
    return cells


_SIGNS = {
    **{"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "ldots": "…", "textbf": ""},
    **{"pm": "±", "downarrow": "↓", "rightarrow": "→", "textsuperscript": ""},
    **{"dag": "†", "ddag": "‡", "S": "§", "P": "¶"},
}


def _latex_text(source):
    """Return what a piece of LaTeX shows; fail on unbalanced groups, open formulas and bare special characters."""
    shown, depth, formula, place = "", 0, False, 0
    while place < len(source):
        rest = source[place:]
        command = re.match(r"\\([A-Za-z]+|[&%$#_{}])", rest)
        if command:
            shown += _SIGNS.get(command[1]) if command[1].isalpha() else command[1]
            place += len(command[0])
            continue
        assert rest[0] not in "\\&%#_^~", rest
        assert formula or rest[0] not in "<>|", rest
        depth += (rest[0] == "{") - (rest[0] == "}")
        assert depth >= 0, source
        formula ^= rest[0] == "$"
        dash = rest.startswith("--")
        shown += "–" if dash else "" if rest[0] in "{}$" else rest[0]
        place += 2 if dash else 1
    assert depth == 0 and not formula, source
    return shown


def test_the_reader_of_latex_finds_what_would_not_compile():
    for broken in ("a_b", "50%", "{a", "a}", "$x", "a & b", "#", "\\unknown", "a|b"):
        with pytest.raises((AssertionError, TypeError)):
            _latex_text(broken)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    rows = tuple((Cell(label), Cell(label, bold=True, marks="†↓‡§¶")) for label in HOSTILE if label.isascii())
    table = Table(HOSTILE[5], ("method", HOSTILE[6]), rows, frozenset({0, 2}), notes=HOSTILE[:6])
    body = "\n".join([render(SMALL, "latex"), render(table, "latex")])
    document = "\n".join([r"\documentclass{article}\usepackage{booktabs}\begin{document}", body, r"\end{document}"])
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]


def test_markdown_columns_line_up_with_wide_letters():
    table = Table("", ("x", "y"), ((Cell("蒸留"), Cell("1")), (Cell("kd"), Cell("22"))))
    assert render(table, "markdown").split("\n")[2:4] == ["| 蒸留 |   1 |", "| kd   |  22 |"]


def test_the_file_name_tells_the_form(tmp_path):
    for name, text in (("t.md", MARKDOWN), ("t.tex", LATEX), ("t.CSV", CSV)):
        assert render(SMALL, format_of(tmp_path / name)) == text
    with pytest.raises(RecipeError, match=r"t\.doc: which form\? Use one of the endings \.md, \.tex, \.csv"):
        format_of(tmp_path / "t.doc")


def test_an_unknown_form_is_named():
    assert check_format("latex") == "latex"
    with pytest.raises(RecipeError, match=r"Unknown format 'latx'\. Did you mean 'latex'\?"):
        check_format("latx")
