"""Start a real browser, and see a page as somebody who reads it."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="chromium is not installed" if CHROMIUM is None else "playwright is not installed",
)
# the browser itself must not look for a network
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_STRIP = 8000  # pixels: taller screenshots come out wrong

# Every piece of text that is drawn: an element has a piece for each of its text nodes.
_TEXTS = """() => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => {  // whatever way the colour is written
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    const drawn = element.checkVisibility({visibilityProperty: true}) && box.width && box.height;
    const outside = box.right + scrollX <= 0 || box.bottom + scrollY <= 0;  // a link that waits for the keyboard
    if (!node.data.trim() || !drawn || outside) continue;
    const drawing = element instanceof SVGElement, style = getComputedStyle(element);
    const matrix = drawing ? element.getScreenCTM() : null;
    found.push({
      text: node.data.trim(),
      drawing: drawing,
      size: parseFloat(style.fontSize) * (matrix ? Math.hypot(matrix.a, matrix.b) : 1),
      colour: rgba(drawing ? style.fill : style.color),
      box: [box.left + scrollX, box.top + scrollY, box.width, box.height],
    });
  }
  return found;
}"""


class Text(NamedTuple):
    text: str
    drawing: bool  # whether it is inside an SVG
    size: float  # pixels on the screen
    colour: tuple[int, int, int, int]  # red, green, blue, opacity: 0 to 255
    box: tuple[float, float, float, float]  # left, top, width, height on the page


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the system's browser: playwright's own would have to be downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


def texts(page: Any) -> list[Text]:
    return [Text(**found) for found in page.evaluate(_TEXTS)]


def contrasts(page: Any) -> list[tuple[Text, float]]:
    """Return each text with the contrast (WCAG 2) between its colour and what is really painted behind it."""
    found = texts(page)
    page.add_style_tag(content="body * { color: transparent !important } svg text { visibility: hidden !important }")
    pixels = _screenshot(page)
    return [(text, _contrast(text.colour, _behind(pixels, text.box))) for text in found]


def luminance(colour: Any) -> float:
    """Return the relative luminance (WCAG 2) of red, green and blue: 0 of black, 1 of white."""
    share = np.asarray(colour[:3], dtype=float) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def background(page: Any) -> np.ndarray:
    """Return what is painted in the page's upper left corner."""
    return _colour(_pixels(page.screenshot())[0, 0])


def _screenshot(page: Any) -> np.ndarray:
    """Return the whole page, H W, each colour as one number, which is faster to count."""
    width, height = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    strips = []
    for top in range(0, height, _STRIP):
        clip = {"x": 0, "y": top, "width": width, "height": min(_STRIP, height - top)}
        strips.append(_pixels(page.screenshot(full_page=True, clip=clip)))
    return np.concatenate(strips)


def _pixels(png: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).view(np.uint32)[:, :, 0]


def _colour(pixel: Any) -> np.ndarray:
    """Return red, green and blue."""
    return np.atleast_1d(pixel).view(np.uint8)[:3]


def _behind(pixels: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    """Return the most frequent colour in a box: a line that crosses it is not its background."""
    left, top, width, height = map(round, box)
    inside = pixels[top : top + max(height, 1), max(left, 0) : left + max(width, 1)]
    colours, counts = np.unique(inside, return_counts=True)
    return _colour(colours[counts.argmax()])


def _contrast(colour: tuple[int, int, int, int], behind: np.ndarray) -> float:
    opacity = colour[3] / 255
    seen = np.asarray(colour[:3]) * opacity + behind * (1 - opacity)
    dark, light = sorted((luminance(seen), luminance(behind)))
    return (light + 0.05) / (dark + 0.05)
