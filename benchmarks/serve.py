"""Load servers of one teacher and its student, in every form, beside a plain server of the teacher.

    python benchmarks/serve.py             # about ten minutes on 2 cores
    python benchmarks/serve.py --quick     # seconds for each, and 5,000 requests instead of 100,000
    python benchmarks/serve.py --check     # exit with status 1 if a target is missed

The teacher is --model (12 layers of gte-small) with a head that is fitted to banking77, the student three of its layers
with another: what they are worth does not matter here, the time of an answer does. The plain server is FastAPI with a
pipeline of transformers (the group plain-server). Servers and the clients that ask them (benchmarks/_load.py) are
processes of this machine, loopback only, and share its cores; each server runs alone. The label of each answer is
compared with what the model says. At last one student is asked by 64 clients, while others send slowly, too much,
nonsense, or cut their connections, and the server is stopped and started again in the middle: no answer may be wrong or
lost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _table import conclude, parser
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "shared"
CLIENTS = (1, 8, 64)
TEXTS = 500  # that are asked
PLAIN, SERVED = "plain server, teacher", "student, int8"
FASTER, QUICKER, MOST_MB, REQUESTS = 10, 10, 250, 100_000


@dataclass
class Measured:
    """Hold what a server did for so many clients."""

    server: str
    clients: int
    per_second: float
    p50: float
    p95: float
    p99: float
    requests: int
    wrong: int
    lost: int
    megabytes: float  # of the server, at its highest until then


def main() -> None:
    """Measure all servers, then the one that must not fail."""
    options = _options()
    with tempfile.TemporaryDirectory() as between:
        folder = options.models or Path(between)
        models = make_models(options, folder)
        texts = {name: _asked(options, folder, model) for name, model in models.items()}
        rows = []
        for name, model in {PLAIN: models["teacher, torch"], **models}.items():
            asked = texts.get(name, texts["teacher, torch"])
            with _server(name, model, _free_port()) as (process, port):
                _ask(port, 2, asked, seconds=1.0)  # what loads at the first request
                for clients in CLIENTS:
                    found = _ask(port, clients, asked, seconds=1.5 if options.quick else 4.0)
                    rows.append(_measured(name, clients, found, _peak_mb(process.pid)))
        chaos = cause_chaos(models[SERVED], texts[SERVED], 5_000 if options.quick else REQUESTS)
    _show(rows, chaos)
    targets = _targets(rows, chaos)
    for what, met in targets.items():
        print(f"{'yes' if met else 'NO '}  {what}")
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "chaos": chaos}, indent=1) + "\n")
    conclude([what for what, met in targets.items() if not met], options)


def _options() -> Namespace:
    own = parser(__doc__.splitlines()[0])
    own.add_argument("--model", type=Path, default=SHARED / "models" / "gte-small", help="the encoder of the teacher")
    own.add_argument("--data", type=Path, default=SHARED / "data" / "banking77", help="train.csv and test.csv")
    own.add_argument("--models", type=Path, help="keep the models there, and take those that are there")
    return own.parse_args()


def make_models(options: Namespace, folder: Path) -> dict[str, Path]:
    """Make teacher and student in their three forms, and return their folders."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    import limbeck
    from limbeck.deploy.export import export

    block = {"name": "table", "train": str(options.data / "train.csv"), "validation": str(options.data / "test.csv")}
    block |= {"text": "text", "label": "category"}
    names = [(who, form) for who in ("teacher", "student") for form in ("torch", "onnx", "int8")]
    places = {f"{who}, {form}": folder / f"{who}-{form}" for who, form in names}
    if all(place.is_dir() for place in places.values()):
        return places
    task = limbeck.load_task(**block)
    train = task.split("train")
    labels = dict(enumerate(task.label_names))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    named = {"num_labels": len(labels), "id2label": labels, "label2id": {name: at for at, name in labels.items()}}
    teacher = AutoModelForSequenceClassification.from_pretrained(options.model, dtype="float32", **named)
    for who, model in (("teacher", teacher), ("student", limbeck.keep_layers(teacher, [2, 10, 12]))):
        fitted = [labels[index] for index in train["label"]]
        limbeck.fit_head(model, tokenizer, train["text"][:], fitted, rows=1_500)
        source = places[f"{who}, torch"]
        for part in (model, tokenizer):
            part.save_pretrained(source)
        export(source, "onnx", places[f"{who}, onnx"], task=block, max_drop=1, force=True)
        form = "onnx-int8"
        export(source, form, places[f"{who}, int8"], task=block, max_drop=1, vocabulary="compact", force=True)
    return places


def _asked(options: Namespace, folder: Path, model: Path) -> Path:
    """Write texts and what the model answers to each of them alone."""
    from limbeck.inference.asked import load_asked
    from limbeck.tasks.files import read_columns

    texts = read_columns(options.data / "test.csv", ["text"]).values["text"][::6][:TEXTS]
    labels, scores = load_asked(model).predict(texts, batch_size=1)
    sure = (scores.max(1) - _second(scores)) > 1e-3  # rounding may turn the others
    file = folder / f"{model.name}.json"
    pairs = [pair for pair, kept in zip(zip(texts, labels, strict=True), sure, strict=True) if kept]
    file.write_text(json.dumps(pairs), encoding="utf-8")
    return file


def _second(scores: Any) -> Any:
    import numpy as np

    return np.sort(scores, axis=1)[:, -2]


@contextmanager
def _server(name: str, model: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server until the block ends."""
    process = _start(name, model, port)
    try:
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _start(name: str, model: Path, port: int) -> subprocess.Popen[str]:
    words = ["-m", "limbeck", "serve", str(model), "--port", str(port)]
    if name == PLAIN:
        words = ["-m", "uvicorn", "_plain_server:app", "--port", str(port), "--log-level", "warning"]
    environment = os.environ | {"MODEL": str(model), "HF_HUB_OFFLINE": "1"}
    out = subprocess.DEVNULL if name == PLAIN else subprocess.PIPE
    process = subprocess.Popen([sys.executable, *words], cwd=HERE, env=environment, text=True, stdout=out)
    for _ in range(1200):
        if _answers(port):
            return process
        if process.poll() is not None:
            raise SystemExit(f"The server '{name}' ended with exit code {process.returncode}.")
        time.sleep(0.05)
    raise SystemExit(f"The server '{name}' did not answer within a minute.")


def _answers(port: int) -> bool:
    body = json.dumps({"inputs": "Where is my card?"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def _ask(port: int, clients: int, texts: Path, **more: Any) -> dict[str, Any]:
    return json.loads(_asking(port, clients, texts, **more).communicate()[0])


def _asking(port: int, clients: int, texts: Path, **more: Any) -> subprocess.Popen[str]:
    settings = json.dumps({"port": port, "clients": clients, "texts": str(texts), **more})
    return subprocess.Popen([sys.executable, str(HERE / "_load.py"), settings], text=True, stdout=subprocess.PIPE)


def _measured(name: str, clients: int, found: dict[str, Any], megabytes: float) -> Measured:
    figures = {key: found[key] for key in ("per_second", "p50", "p95", "p99", "requests")}
    return Measured(name, clients, **figures, wrong=len(found["wrong"]), lost=len(found["lost"]), megabytes=megabytes)


def _peak_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def cause_chaos(model: Path, texts: Path, requests: int) -> dict[str, Any]:
    """Ask by 64 clients among others that misbehave, with a restart in the middle; return what was found."""
    port = _free_port()
    process = _start(SERVED, model, port)
    asking = _asking(port, 64, texts, requests=requests, chaos=True)
    said, restarts, megabytes = [], 0, 0.0
    while asking.poll() is None:
        # early, and once more: a whole run takes a minute or two
        wait = min(5.0, requests / 2_000) if restarts < 2 else 1.0
        time.sleep(wait)
        megabytes = max(megabytes, _peak_mb(process.pid))
        if restarts < 2 and asking.poll() is None:
            process.send_signal(signal.SIGTERM)
            said.append(process.communicate(timeout=60)[0].splitlines()[-1])
            process = _start(SERVED, model, port)
            restarts += 1
    process.send_signal(signal.SIGTERM)
    said.append(process.communicate(timeout=60)[0].splitlines()[-1])
    found: dict[str, Any] = json.loads(asking.communicate()[0])
    return found | {"restarts": restarts, "megabytes": megabytes, "said": said}


def _targets(rows: list[Measured], chaos: dict[str, Any]) -> dict[str, bool]:
    plain, served = (next(row for row in rows if (row.server, row.clients) == (name, 8)) for name in (PLAIN, SERVED))
    faster, quicker = served.per_second / plain.per_second, plain.p95 / served.p95
    memory = max([chaos["megabytes"], *(row.megabytes for row in rows if row.server == SERVED)])
    wrong, lost = (sum(getattr(row, name) for row in rows) for name in ("wrong", "lost"))
    return {
        f"8 clients: {faster:.1f} times the requests per second of the plain server (at least {FASTER})": faster
        >= FASTER,
        f"8 clients: p95 {quicker:.1f} times as short (at least {QUICKER})": quicker >= QUICKER,
        f"memory of the student's process: {memory:.0f} MB (at most {MOST_MB})": memory <= MOST_MB,
        f"{chaos['requests']:,} requests among misbehaving clients, {chaos['restarts']} restarts: "
        f"{len(chaos['wrong'])} wrong, {len(chaos['lost'])} lost (none)": not chaos["wrong"]
        and not chaos["lost"]
        and chaos["restarts"] > 0,
        f"all other requests: {wrong} wrong, {lost} lost (none)": not wrong and not lost,
    }


def _show(rows: list[Measured], chaos: dict[str, Any]) -> None:
    table = Table(title=f"One text in each request, {os.cpu_count()} cores")
    names = ("server", "clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "MB")
    for name in names:
        table.add_column(name, justify="left" if name == "server" else "right")
    for row in rows:
        times = (f"{value:.1f}" for value in (row.p50, row.p95, row.p99))
        table.add_row(row.server, str(row.clients), f"{row.per_second:,.0f}", *times, f"{row.megabytes:.0f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    others = ", ".join(f"{name} {count:,}" for name, count in sorted(chaos["others"].items()))
    print(f"Chaos: {chaos['requests']:,} requests, p99 {chaos['p99']:.0f} ms; others: {others}")
    for line in chaos["said"]:
        print(f"  {line}")


if __name__ == "__main__":
    main()
