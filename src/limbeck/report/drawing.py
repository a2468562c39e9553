"""Style figures, and write them as files for papers and into the page.

One style serves a white page and a dark one. Text, axes and grid are drawn in one ink, which in the page becomes the
colour of the text around the figure; the colours of data can be told from white and from black.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from limbeck._internal.files import replacing
from limbeck.errors import MissingExtra

INK = "#0b0c0d"
SUFFIXES = (".svg", ".png", ".pdf")
CELL = "cell-"  # begins the ids of numbers on a map, whose colour follows the map
_NARROW = 400  # points: as wide, a figure can be read on a phone
_SVG = "http://www.w3.org/2000/svg"
_STYLE: Any = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that files are the same everywhere
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.parse_math": False,  # a label may hold any sign
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.5,
    "hatch.linewidth": 0.6,
    "image.composite_image": False,
    "image.interpolation": "none",  # one pixel for each value, whatever size it is shown at
    "image.cmap": "viridis",
    "svg.fonttype": "none",
    "svg.hashsalt": "limbeck",
    "pdf.fonttype": 42,  # fonts that publishers take
}


@dataclass(frozen=True)
class ReportFigure:
    """Hold a figure with what it shows in words; ``name`` is the stem of its files, ``kind`` its place in the page."""

    name: str
    title: str
    caption: str
    alt: str
    task: str
    kind: str
    figure: Any


@contextmanager
def style() -> Iterator[None]:
    """Draw everything inside the block in the report's style."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("Figures need matplotlib: pip install 'limbeck[report]'.") from error
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # signs that the font lacks are boxes in PNG and PDF; in SVG the reader's own fonts show them
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save(drawn: ReportFigure, folder: Path) -> list[Path]:
    """Write a figure as SVG, PNG and PDF; the same figure gives the same bytes."""
    return [save_as(drawn, folder / f"{drawn.name}{suffix}") for suffix in SUFFIXES]


def save_as(drawn: ReportFigure, file: Path) -> Path:
    """Write a figure in the format that the file's name tells."""
    words = {"Title": printable(drawn.title)}
    about = printable(drawn.alt)
    options: dict[str, dict[str, Any]] = {
        ".svg": {"metadata": {**words, "Description": about, "Date": None, "Creator": None}},
        ".png": {"metadata": {**words, "Description": about, "Software": None}, "dpi": 200, "facecolor": "white"},
        ".pdf": {"metadata": {**words, "Subject": about, "CreationDate": None, "Creator": None, "Producer": None}},
    }
    with style(), replacing(file) as temporary:
        suffix = file.suffix.lower()
        drawn.figure.savefig(temporary, format=suffix[1:], **options[suffix])
    return file


def inline_svg(drawn: ReportFigure) -> str:
    """Write a figure for the page: it scales with it, takes its font and colour, and says in words what it shows."""
    file = io.BytesIO()
    with style():
        drawn.figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    _remove(root, ("metadata", "style"))  # a style sheet would hold for the whole page
    for element in root.iter():
        _tidy(element, drawn.name)
    _keep_referenced_ids(root)
    width = float(root.get("viewBox", "0 0 0 0").split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    title, words = (ElementTree.Element(tag, id=f"{drawn.name}-{tag}") for tag in ("title", "desc"))
    title.text, words.text = printable(drawn.title), printable(drawn.alt)
    root[:0] = [title, words]
    root.attrib |= {
        "xmlns": _SVG,
        "role": "img",
        "aria-labelledby": f"{title.get('id')} {words.get('id')}",
        "class": "wide" if width > _NARROW else "narrow",
        "style": f"max-width: {4 * width / 3:.0f}px; stroke-linejoin: round; stroke-linecap: butt",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _remove(parent: ElementTree.Element, tags: tuple[str, ...]) -> None:
    for child in list(parent):
        if child.tag in tags:
            parent.remove(child)
        else:
            _remove(child, tags)


def _tidy(element: ElementTree.Element, prefix: str) -> None:
    """Make ids unique on a page, drop name spaces, use one ink, and keep no more digits than are seen."""
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        name = name.rpartition("}")[2]
        if name == "id":
            if value.startswith(CELL):
                element.set("class", CELL.strip("-"))
            value = f"{prefix}-{value}"
        elif name == "href" and value.startswith("#"):
            value = f"#{prefix}-{value[1:]}"
        elif name in ("d", "x", "y"):
            value = " ".join(re.sub(r"\d+\.\d+", _two_digits, value).split())
        elif name == "transform" and value.startswith("rotate(-0 "):
            continue
        elif name != "href":  # which is an image now
            value = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", value).replace(INK, "currentColor")
            value = re.sub(r"font-family: [^;]+;?|(?<=px) ?'[^;]+", "", value).strip("; ")
        element.set(name, value)


def _two_digits(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def _keep_referenced_ids(root: ElementTree.Element) -> None:
    values = [value for element in root.iter() for name, value in element.attrib.items() if name != "id"]
    wanted = {name for value in values for name in re.findall(r"(?:^#|url\(#)([^)]+)", value)}  # and colours
    for element in root.iter():
        if element.get("id") not in wanted:
            element.attrib.pop("id", None)


def printable(text: str) -> str:
    """Replace control characters, which XML has no place for."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
