"""Answer HTTP requests: predictions, the page to try them, and what a service is watched by."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import InputError
from .batcher import Answered, Batcher, QueueFull, TooManyTokens
from .messages import Question, TooLarge, Writer, read_object, read_question
from .metrics import exposition
from .settings import Settings

logger = logging.getLogger(__name__)

_DISCARDED = 64  # times the largest body: as much of a larger one is read, so that its sender hears why
_SHOWN = 50  # examples at a time
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")

Endpoint = Callable[[Request], Awaitable[Response]]


class Refusal(Exception):
    """Report a request that is not answered, with the status that says so."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, dict(headers or {})


@dataclass
class Service:
    """Hold what is served; ``key`` is what requests must carry, where it is set.

    ``examples`` are shown on the page, those on which student and teacher differ most first: each has ``texts``,
    ``label``, ``student``, ``teacher`` and ``difference``.
    """

    settings: Settings
    student: Batcher
    teacher: Batcher | None = None
    examples: Sequence[Mapping[str, Any]] = ()
    card: str = ""
    key: str | None = None
    draining: bool = False  # no connection is kept for another request
    accepted: int = 0  # requests for predictions
    answered: int = 0
    _words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._words = [_searched(one) for one in self.examples]
        self._writers = {one: Writer(one.model.about) for one in self.batchers}

    @property
    def batchers(self) -> list[Batcher]:
        """Return those of the student and, where there is one, of the teacher."""
        return [self.student, *([self.teacher] if self.teacher else [])]

    async def answer(self, batcher: Batcher, question: Question) -> Answered:
        """Answer a request that was read."""
        try:
            job = batcher.accept(question.texts, refuse_cut=not question.truncate)
        except QueueFull as full:
            raise Refusal(
                503,
                "Overloaded",
                f"{batcher.queue} texts wait already. Try again in {full.seconds} s.",
                {"retry-after": str(full.seconds)},
            ) from None
        self.accepted += 1
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await batcher.answer(job)
        except TimeoutError:
            seconds = self.settings.timeout
            raise Refusal(504, "Timeout", f"There was no answer within {seconds:g} seconds. Try again later.") from None
        finally:
            self.answered += 1

    def written(self, batcher: Batcher, question: Question, found: Answered) -> list[str]:
        """Write the answer to each text as JSON."""
        answers = found.answers
        if question.raw_scores and batcher.model.about.problem in ("classification", "multi_label"):
            answers = [one._replace(scores=logits) for one, logits in zip(answers, found.logits, strict=True)]
        return self._writers[batcher].write(question.texts, answers)

    def found_examples(self, words: str, first: int) -> dict[str, Any]:
        """Return some of the examples that hold all of these words."""
        wanted = words.casefold().split()
        found = [place for place, text in enumerate(self._words) if all(word in text for word in wanted)]
        return {"total": len(found), "rows": [self.examples[place] for place in found[first : first + _SHOWN]]}


def _searched(example: Mapping[str, Any]) -> str:
    names = [str(example.get("label", "")), *(str(example[who][0]["label"]) for who in ("student", "teacher"))]
    return " ".join([*example["texts"], *names]).casefold()


def make_app(service: Service) -> Starlette:
    """Make the application of a service."""
    page, policy = _page()
    info = json.dumps(_info(service)).encode()

    async def predict(request: Request) -> Response:
        body = await _body(request, service)
        about = service.student.model.about
        question = read_question(body, about, min(service.settings.max_texts, service.settings.queue))
        found = await service.answer(service.student, question)
        written = service.written(service.student, question, found)
        text = "[" + ",".join(written) + "]" if question.batch else written[0]
        return Response(text, media_type=_JSON, headers={"x-cut": str(found.cut)} if found.cut else None)

    async def ask(request: Request) -> Response:
        """Answer one text by one of the models, with what it took: for the page."""
        body = await _body(request, service)
        who = read_object(body).get("model", "student")
        batcher = service.teacher if who == "teacher" else service.student
        if who not in ("student", "teacher") or batcher is None:
            raise Refusal(404, "Unknown", '"model" must be "student", or "teacher" where one is served.')
        question = read_question(body, batcher.model.about, 1)
        found = await service.answer(batcher, question)
        (answer,) = service.written(batcher, question, found)
        took = f'"milliseconds":{found.milliseconds:.3f},"tokens":{found.tokens},"cut":{json.dumps(bool(found.cut))}'
        return Response(f'{{"answer":{answer},{took}}}', media_type=_JSON)

    async def examples(request: Request) -> Response:
        values = read_object(await _body(request, service))
        words, first = values.get("search", ""), values.get("first", 0)
        if not isinstance(words, str) or type(first) is not int or first < 0:
            raise InputError('"search" must be a text, and "first" a number from 0 on.')
        return Response(json.dumps(service.found_examples(words, first)), media_type=_JSON)

    async def health(request: Request) -> Response:
        return Response(status_code=503 if service.draining else 200)

    async def figures(request: Request) -> Response:
        text = exposition([batcher.metrics for batcher in service.batchers])
        return Response(text, headers={"content-type": _TEXT})

    async def about(request: Request) -> Response:
        return Response(info, media_type=_JSON)

    async def card(request: Request) -> Response:
        return Response(service.card, media_type="text/plain")

    async def front(request: Request) -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": policy})

    guarded: dict[str, tuple[str, Endpoint]] = {
        "/predict": ("POST", predict),
        "/ask": ("POST", ask),
        "/examples": ("POST", examples),
        "/metrics": ("GET", figures),
        "/info": ("GET", about),
        "/card": ("GET", card),
    }
    routes = [Route(path, _guard(service, run), methods=[method]) for path, (method, run) in guarded.items()]
    routes += [
        Route(path, _answering(service, run), methods=["GET"]) for path, run in (("/", front), ("/health", health))
    ]
    return Starlette(routes=routes)


def _guard(service: Service, run: Endpoint) -> Endpoint:
    """Refuse requests without the key, and those of another site's page, by a name of its own for this machine."""

    own_names_only = service.key is None and service.settings.loopback

    async def check(request: Request) -> Response:
        if service.key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), service.key.encode()):
                message = "The key is missing or wrong. Send it as 'Authorization: Bearer KEY'."
                raise Refusal(401, "Unauthorized", message, {"www-authenticate": "Bearer"})
        elif own_names_only:
            host = request.headers.get("host", "")
            if host.rpartition(":")[0] not in _OWN_NAMES and host not in _OWN_NAMES:
                raise Refusal(421, "Misdirected", f"This service answers at {' and '.join(_OWN_NAMES)} only.")
        return await run(request)

    return _answering(service, check)


def _answering(service: Service, run: Endpoint) -> Endpoint:
    """Turn what goes wrong into an answer that says what to do, and count it; no text of a request is logged."""

    async def answer(request: Request) -> Response:
        begin = time.perf_counter()
        try:
            response = await run(request)
        except Refusal as refusal:
            response = _refused(refusal)
        except (TooLarge, TooManyTokens) as error:
            response = _refused(Refusal(413, "Validation", str(error)))
        except InputError as error:
            response = _refused(Refusal(422, "Validation", str(error)))
        except ClientDisconnect:
            response = Response(status_code=400)  # nobody reads it
        except Exception as error:
            # its message may quote the text
            where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
            logger.error("An answer failed with %s:\n%s", type(error).__name__, where)
            response = _refused(Refusal(500, "Backend", "The model could not answer. The server's log says where."))
        if service.draining:
            response.headers["connection"] = "close"
        if request.scope["path"] == "/predict":
            service.student.metrics.request(response.status_code, time.perf_counter() - begin)
        return response

    return answer


def _refused(refusal: Refusal) -> Response:
    content = json.dumps({"error": str(refusal), "error_type": refusal.kind})
    return Response(content, status_code=refusal.status, media_type=_JSON, headers=refusal.headers)


async def _body(request: Request, service: Service) -> bytes:
    """Read the body of a request, which must not be too long and arrive in time."""
    most, seconds = service.settings.max_body, service.settings.timeout
    too_large = Refusal(413, "Validation", f"The request has more than {most:,} bytes. Send several smaller ones.")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif size > _DISCARDED * most:
                    too_large.headers["connection"] = "close"
                    raise too_large
    except TimeoutError:
        raise Refusal(
            408, "Timeout", f"The request did not arrive within {seconds:g} seconds.", {"connection": "close"}
        ) from None
    if size > most:
        raise too_large
    return b"".join(parts)


def _info(service: Service) -> dict[str, Any]:
    """Return what ``/info`` says: as text-embeddings-inference does, and what the page shows."""
    settings, about = service.settings, service.student.model.about
    labels = {str(index): name for index, name in enumerate(about.labels)}
    described = {
        "model_id": about.name,
        "model_dtype": {"onnx-int8": "int8"}.get(about.form, "float32"),
        "model_type": {
            "classifier": {"id2label": labels, "label2id": {name: i for i, name in enumerate(about.labels)}}
        },
        "max_concurrent_requests": settings.queue,
        "max_input_length": about.max_length,
        "max_batch_tokens": settings.max_tokens,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": True,
        "version": _version(),
    }
    models = [("student", service.student), *([("teacher", service.teacher)] if service.teacher else [])]
    shown = {who: _described(batcher) for who, batcher in models}
    return described | {"limbeck": shown | {"examples": len(service.examples), "card": bool(service.card)}}


def _described(batcher: Batcher) -> dict[str, Any]:
    about = batcher.model.about
    return {
        "name": about.name,
        "problem": about.problem,
        "form": about.form,
        "parameters": about.parameters,
        "texts": about.texts,
        "columns": list(about.columns),
        "labels": len(about.labels),
        "max_length": about.max_length,
    }


def _version() -> str:
    for name in ("limbeck", "limbeck-runtime"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _page() -> tuple[bytes, str]:
    """Return the page, and the policy that lets its own program run and nothing else."""
    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    hashes = {tag: _hash(re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)) for tag in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _hash(found: re.Match[str] | None) -> str:
    assert found is not None
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    return f"'sha256-{digest}'"
