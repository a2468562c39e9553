"""Make consoles that print what users name as it is."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Make a console to which ``[/x]`` is no markup and ``:x:`` no picture: paths and labels may hold either."""
    return Console(markup=False, emoji=False, **options)
