"""Load from the hub. Whether it can be reached is asked once, so that being offline costs seconds, not retries."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from functools import cache
from typing import Any

from limbeck.errors import DataError

_SECONDS = 3


@cache
def connection_problem() -> str:
    """Say why the hub cannot be reached; an empty text means that it can."""
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
    """Return the hub's address, which ``HF_ENDPOINT`` may set."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def host() -> str:
    """Return the address as it may be shown: without the name and password that can be in it."""
    return address().rpartition("@")[2]


def load_hub_data(task: str, files: str, *address: str, option: str = "task.data_dir", **options: str) -> Any:
    """Load a data set of the hub; if that fails, the error says which ``files`` to put in a folder for ``option``."""
    import datasets

    use_cache_only_if_offline()
    try:
        return datasets.load_dataset(*address, **options)
    # Anything can go wrong between here and a server; whatever it is, local files are the remedy.
    except Exception as error:
        raise DataError(
            f"{task} could not be loaded from the hub ({', '.join(address)}): {error}. To work without the network, "
            f"put {files} into a folder and set {option} to it."
        ) from error


def use_cache_only_if_offline() -> None:
    """Look only for what is cached already if there is no network; call it before asking the hub for anything."""
    if connection_problem():
        import datasets
        import huggingface_hub

        # Both read the variable HF_HUB_OFFLINE when they are imported, which may be long past.
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
