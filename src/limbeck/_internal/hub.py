"""Whether the hub can be reached: asked once, so that being offline costs seconds and not a series of retries."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from functools import cache
from typing import Any

from limbeck.errors import DataError

_SECONDS = 3


@cache
def trouble() -> str:
    """Why the hub cannot be reached, or nothing if it can."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return "offline by HF_HUB_OFFLINE"
    request = urllib.request.Request(address(), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""  # it answered
    except (OSError, ValueError) as error:
        return f"{host()} is not reachable: {getattr(error, 'reason', error)}"


def address() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def host() -> str:
    """The address as it may be shown: without the name and password that can be in it."""
    return address().rpartition("@")[2]


def load_hub_data(task: str, files: str, *address: str, **options: str) -> Any:
    """A data set of the hub; where it cannot be had, an error that says which ``files`` to put in a folder instead."""
    import datasets

    use_cache_only_if_offline()
    try:
        return datasets.load_dataset(*address, **options)
    # Anything can go wrong between here and a server; whatever it is, local files are the remedy.
    except Exception as error:
        raise DataError(
            f"{task} could not be loaded from the hub ({', '.join(address)}): {error}. To work without the network, "
            f"put {files} into a folder and set task.data_dir to it."
        ) from error


def use_cache_only_if_offline() -> None:
    """Call before asking for a hub's model or data: without a network, only what is cached already is looked for."""
    if trouble():
        import datasets
        import huggingface_hub

        # Both read the variable HF_HUB_OFFLINE when they are imported, which may be long past.
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
