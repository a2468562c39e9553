"""Kill commands at random moments on a small disk, start them again, and compare what they leave: ``make chaos``.

Each command runs once without a break. Then it is killed again and again, half of the time at any moment and half just
after a file appeared or went, until it has ended; and from the start again, until there were enough kills. After every
kill, what was finished must still be there (else it is lost); at the end, all must be as without a break (else wrong).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import distill_words
from helpers.tiny_tables import WORDS, sentences, write_csv
from transformers import AutoTokenizer

from limbeck.cli.main import main as limbeck
from limbeck.models.vocabulary import make_wordpiece
from limbeck.training.checkpoint_folders import last_checkpoint

_DISK_MB = 512
_LONGEST = 300.0  # seconds, after which a command hangs
_SHARES = {"distill": 12, "cache": 8, "study": 12, "export": 6, "predict": 6, "shrink": 6}  # of 50 kills
_TRAIN = ["train.max_steps=12", "train.save_steps=2", "train.eval_steps=5", "train.logging_steps=1"]
Files = dict[str, str]  # digests by path
Look = Callable[[Path], Files]


@dataclass(frozen=True)
class Victim:
    """Describe a command to kill: its words, and what it leaves.

    ``finished`` gives what must not change any more once it is there, ``result`` what must be as without a break.
    ``check`` raises where a kill left something that is neither old nor new.
    """

    words: list[Any]
    finished: Look
    result: Look
    check: Callable[[Path], None] = lambda folder: None
    prepare: Callable[[Path], None] = lambda folder: None


@dataclass
class Tally:
    """Count what became of the kills of one command."""

    kills: int = 0
    ended: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: int = 0  # temporary files and folders of killed processes, which cost room only


def main() -> int:
    """Kill all commands, print the counts, and return 1 where something was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of all commands together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments")
    parser.add_argument("--only", choices=_SHARES, help="kill this command alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    shares = {given.only: 1} if given.only else _SHARES
    tallies = {}
    with small_disk() as disk:
        print(f"seed {given.seed}, on {disk}", flush=True)
        victims = make_victims(disk / "given")
        for name, share in shares.items():
            kills = max(1, round(given.kills * share / sum(shares.values())))
            dice = random.Random(f"{given.seed} {name}")
            tallies[name] = torment(victims[name], disk / name, kills, dice)
            report(name, tallies[name])
    total = Tally()
    for tally in tallies.values():
        for part in vars(total):
            setattr(total, part, getattr(total, part) + getattr(tally, part))
    report("all", total)
    return int(bool(total.lost or total.wrong))


def report(name: str, tally: Tally) -> None:
    counts = f"{tally.kills:3} kills, {tally.ended:2} ended, {len(tally.lost)} lost, {len(tally.wrong)} wrong"
    counts += f", {tally.left} temporary files left"
    print(f"{name:8} {counts}", *tally.lost, *tally.wrong, sep="\n         ", flush=True)


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """Give a disk of its own, in memory, where this user may mount one; else a folder."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    options = ["-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def torment(victim: Victim, home: Path, kills: int, dice: random.Random) -> Tally:
    """Kill one command so many times, and finish what it has begun."""
    tally, whole = Tally(), home / "whole"
    begin(victim, whole)
    begun = time.monotonic()
    if (code := ended(start(victim.words, whole))) != 0:
        raise SystemExit(f"without a kill it ended with {code}: {said(whole)}")
    lasted = time.monotonic() - begun
    folder, seen = home / "broken-0", Files()
    begin(victim, folder)
    while True:
        child = start(victim.words, folder)
        if tally.kills < kills:
            wait_for_moment(child, folder, lasted, dice)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code == -signal.SIGKILL:
            tally.kills += 1
        look_for_losses(victim, folder, seen, tally)
        if code not in (0, -signal.SIGKILL):
            tally.wrong.append(f"{folder.name} ended with {code}: {said(folder)}")
        if code != -signal.SIGKILL:
            tally.ended += 1
            compare(victim, folder, whole, tally)
            shutil.rmtree(folder)
            if tally.kills >= kills:
                return tally
            folder, seen = home / f"broken-{tally.ended}", Files()
            begin(victim, folder)


def begin(victim: Victim, folder: Path) -> None:
    folder.mkdir(parents=True)
    victim.prepare(folder)


def look_for_losses(victim: Victim, folder: Path, seen: Files, tally: Tally) -> None:
    """Note what was finished before and is gone or another now, and remember what is finished now."""
    try:
        victim.check(folder)
        now = victim.finished(folder)
        tally.lost += [f"{folder.name}: {path}" for path, digest in seen.items() if now.get(path) != digest]
        seen |= now
    except Exception as error:
        tally.lost.append(f"{folder.name}: {type(error).__name__}: {error}")


def compare(victim: Victim, folder: Path, whole: Path, tally: Tally) -> None:
    ours, theirs = victim.result(folder), victim.result(whole)
    different = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
    tally.wrong += [f"{folder.name}: {path} is not as without a kill" for path in different]
    tally.left += sum(path.name != ".lock" for path in folder.rglob(".*"))


def start(words: list[Any], folder: Path) -> int:
    """Run a command in a child of this process, which has loaded torch; return its process id."""
    child = os.fork()
    if child:
        return child
    code: Any = 1
    try:
        os.chdir(folder)
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["limbeck", "--quiet", *map(str, words)]
        hurry()
        limbeck()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def hurry() -> None:
    """Let shrink decide by numbers that are the same every time, and measure for a moment only."""
    from limbeck.inference import latency
    from limbeck.shrink import forms, pipeline, schedule, scores

    pipeline.measure_cost = lambda recipe: schedule.StepCost(epoch=0.5, start=0.02)  # type: ignore[assignment]
    pipeline._Pipeline._left = lambda self: 60 * self.request.minutes  # type: ignore[method-assign]
    forms._SECONDS = 0.1
    latency._WARM_UP = latency._MEASURED = 0.005
    scores._RESAMPLES = 200


def ended(child: int) -> int:
    """Wait for a child; one that hangs is an error."""
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def said(folder: Path) -> str:
    return " ".join(folder.with_suffix(".log").read_text().split())[-500:]


def wait_for_moment(child: int, folder: Path, lasted: float, dice: random.Random) -> None:
    """Return at any moment, or when the folder has changed some times; at once where the child has ended."""
    deadline = time.monotonic() + dice.uniform(0.0, lasted)
    changes = dice.randint(1, 40) if dice.random() < 0.5 else 0
    before = names(folder)
    while time.monotonic() < deadline or changes:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        if changes and (now := names(folder)) != before:
            before, changes = now, changes - 1
            if not changes:
                return
        time.sleep(0.001)


def names(folder: Path) -> set[str]:
    return {entry for _, folders, files in os.walk(folder) for entry in (*folders, *files)}


# What the commands are given, and what they leave


def make_victims(given: Path) -> dict[str, Victim]:
    """Make tables, a teacher and a finished run, in children, and describe the commands that use them."""
    given.mkdir()
    files = write_csv(given / "train.csv", sentences(96)), write_csv(given / "dev.csv", sentences(60, seed=1))
    new = write_csv(given / "new.csv", sentences(4000, seed=2))
    teacher, run = given / "teacher", given / "run"
    make_teacher(teacher)
    pair = [*distill_words(files, teacher)]
    for words in (["distill", "--method", "kd", *pair, "train.max_steps=2", "-o", run], old_export(run, given)):
        if ended(start(words, given)) != 0:
            raise SystemExit(said(given))
    study = given / "study.yaml"
    study.write_text(json.dumps(study_values(files, teacher)))
    asked = ["--model", teacher, "--data", files[0], "--dev", files[1], "--text", "text", "--label", "label"]
    return {
        "distill": Victim(
            ["distill", "--method", "fsd", "method.memory=8", *pair, *_TRAIN, "-o", "run", "--resume"],
            finished=lambda at: whole_files(at, "run/metrics.json"),
            result=lambda at: run_files(at / "run"),
            check=lambda at: check_checkpoints(at / "run"),
        ),
        "cache": Victim(
            ["cache", "--method", "fsd", *pair, "-o", "cache"],
            finished=lambda at: whole_files(at, "cache/*.safetensors"),
            result=lambda at: whole_files(at, "cache/*.safetensors", "cache/*.json"),
        ),
        "study": Victim(
            ["study", study, "-o", "study"],
            finished=lambda at: whole_files(at, "study/*/*/metrics.json"),
            result=lambda at: study_files(at / "study"),
        ),
        "export": Victim(
            ["export", run, "-o", "exported", "--force"],
            finished=lambda at: {},
            result=lambda at: whole_files(at, "exported/*.safetensors", "exported/tokenizer*", "exported/config.json"),
            check=lambda at: check_export(at / "exported", given / "old"),
            prepare=lambda at: shutil.copytree(given / "old", at / "exported") and None,
        ),
        "predict": Victim(
            ["predict", run, new, "--text", "text", "-o", "out.csv", "--force"],
            finished=lambda at: {},
            result=lambda at: whole_files(at, "out.csv"),
            check=check_predictions,
            prepare=lambda at: (at / "out.csv").write_text("old\n") and None,
        ),
        "shrink": Victim(
            ["shrink", *asked, "--minutes", "0.1", "-o", "small"],
            finished=lambda at: whole_files(at, "small/*/metrics.json", "small/race/*/*/metrics.json"),
            result=lambda at: shrunk_files(at / "small"),
        ),
    }


def make_teacher(folder: Path) -> None:
    make_wordpiece([" ".join(WORDS)], folder / "words", vocab_size=80)
    tokenizer = AutoTokenizer.from_pretrained(folder / "words")
    model = tiny_model("bert", depth=4, vocab_size=len(tokenizer))
    model.config.id2label, model.config.label2id = {0: "negative", 1: "positive"}, {"negative": 0, "positive": 1}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(folder / "words")


def old_export(run: Path, given: Path) -> list[Any]:
    return ["export", run, "-o", given / "old", "--licence", "mit"]


def study_values(files: tuple[Path, Path], teacher: Path) -> dict[str, Any]:
    task = {"train": str(files[0]), "validation": str(files[1]), "text": "text", "label": "label", "max_length": 16}
    return {
        "tasks": ["table"],
        "task": task,
        "teacher": {"fine_tuned": str(teacher), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 4, "batch_size": 16, "save_steps": 2, "eval_strategy": "no"},
        "methods": {"ft": {}, "kd": {"grid": {"method.temperature": [2, 5]}}, "cka": {}},
        "rivals": False,
        "seeds": [1, 2],
        "select_seeds": [0],
        "keep": "all",
    }


def check_checkpoints(run: Path) -> None:
    """Raise where there was a checkpoint and none can be resumed from."""
    there = [path.name for path in run.glob("checkpoints/checkpoint-*")]
    done = [path for path in run.glob("checkpoints/checkpoint-*/trainer_state.json")]
    if len(there) > 1 and done and not (run / "metrics.json").exists() and last_checkpoint(run / "checkpoints") is None:
        raise AssertionError(f"no checkpoint of {there} can be resumed from")


def check_export(folder: Path, old: Path) -> None:
    """Raise where neither the old nor a new export is there whole; one that was set aside counts, if it comes back."""
    aside = [path for path in folder.parent.glob(".*exported*") if (path / "parity.json").is_file()]
    for place in (folder, *aside):
        if (place / "parity.json").is_file() and (place / "model.safetensors").is_file():
            read_json(place / "parity.json")
            return
    raise AssertionError("the earlier export is gone, and there is no new one")


def check_predictions(folder: Path) -> None:
    lines = (folder / "out.csv").read_text().splitlines()
    if lines != ["old"] and len(lines) != 4001:
        raise AssertionError(f"out.csv has {len(lines)} lines")


def whole_files(folder: Path, *patterns: str) -> Files:
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern)) if not file.name.startswith(".")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def run_files(run: Path) -> Files:
    """Return the weights, the predictions and the results without the time that it took."""
    results = read_json(run / "metrics.json")
    del results["train_seconds"]
    digests = whole_files(run, "student/*.safetensors", "student/config.json", "predictions.parquet", "data.json")
    return digests | {"metrics.json": json.dumps(results)}


def study_files(study: Path) -> Files:
    runs = sorted(path.parent for path in study.glob("runs/*/metrics.json"))
    found = {f"{run.name}/{name}": digest for run in runs for name, digest in run_files(run).items()}
    return found | whole_files(study, "results.json")


def shrunk_files(folder: Path) -> Files:
    """Return what follows from the data alone: the parts, the runs, every decision, the exports and their scores."""
    found = study_files(folder / "race")
    summary, plan = (read_json(folder / name) for name in ("summary.json", "plan.json"))
    scored = ("name", "kind", "chosen_by", "score", "agreement", "parameters", "against_teacher", "against_rivals")
    models = [{key: model.get(key) for key in scored} for model in summary["models"]]
    whole = whole_files(folder, "data/*", "base/*.safetensors", "students/*/*/*.safetensors", "students/*/*.onnx")
    whole |= whole_files(folder, "students/*/*/onnx/*.onnx")
    return found | whole | {"models": json.dumps(models), "plan.json": json.dumps(plan)}


if __name__ == "__main__":
    sys.exit(main())
