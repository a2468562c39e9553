"""Put a student on the hub: weights, tokenizer, model card and metrics, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck._internal.files import expand_home
from limbeck._internal.hub import address, connection_problem, host
from limbeck.deploy.export import export
from limbeck.errors import RecipeError, RunError
from limbeck.runs.directory import RunDirectory
from limbeck.runtime.folder import PARITY_FILE


@dataclass(frozen=True)
class Pushed:
    """Say where a student is, and what was written there."""

    url: str
    files: list[str]


def push(
    model: str | Path,
    name: str,
    *,
    to: str = "hf",
    private: bool = False,
    siblings: Sequence[str | Path] = (),
    licence: str | None = None,
    message: str | None = None,
) -> Pushed:
    """Upload a run's student, or the folder of an export as it is, to the hub's repository ``name``.

    A run is exported first, with its check and its card. The token is the one that ``hf auth login`` or ``HF_TOKEN``
    set; it is sent to the hub and written nowhere.
    """
    _check(name)
    source = expand_home(model)
    with tempfile.TemporaryDirectory() as between:
        folder = Path(between) / name.rpartition("/")[2]
        if (source / PARITY_FILE).is_file():
            shutil.copytree(source, folder)
        else:
            export(model, to, folder, siblings=siblings, licence=licence)
            run = RunDirectory(source)
            if run.results.is_file():
                shutil.copy(run.results, folder / run.results.name)
        url = _upload(folder, name, private, message or f"{folder.name}, exported by limbeck")
        return Pushed(url, sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()))


def _check(name: str) -> None:
    """Raise what can be known to be wrong before any work."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RecipeError(f"{name!r} is no name for a repository of the hub: {error}") from None
    if problem := connection_problem():
        raise RunError(f"Nothing can be uploaded: {problem}. `limbeck export` writes the same folder here.")
    if get_token() is None:
        raise RunError(
            f"There is no token for {host()}. Run `hf auth login` with one that may write (it is made in the hub's "
            "settings), or set HF_TOKEN."
        )


def _upload(folder: Path, name: str, private: bool, message: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=address())
    try:
        repository = api.create_repo(name, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=repository.repo_id, folder_path=folder, commit_message=message)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = {
            401: "Its token is not valid (any more): run `hf auth login` again.",
            403: "Its token may not write there: take one with the right to write, and a name of your own or of an "
            "organisation that you belong to.",
        }.get(status or 0, "")
        seen = error.server_message or str(error).splitlines()[0]
        raise RunError(f"{host()} refused {name}: {seen.rstrip('.')}. {hint}".rstrip()) from None
    return str(repository)
