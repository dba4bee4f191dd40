"""The HTTP application: completions, models, health, metrics, and a page to try a run."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import MiniGPTError
from minigpt.generate.generator import Generator
from minigpt.generate.text import Continuation
from minigpt.serve.batcher import Batcher
from minigpt.serve.metrics import Metrics
from minigpt.serve.protocol import (
    ChoiceText,
    CompletionRequest,
    Limits,
    RequestError,
    check_model,
    parse_request,
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """What the application serves, and how much of it."""

    model: str
    """Name of the model."""
    step: int
    created: int
    """Seconds since 1970."""
    num_parameters: int
    generator: Generator
    tokenizer: Tokenizer
    batcher: Batcher
    limits: Limits
    max_requests: int
    """Requests that are answered or wait at once."""
    max_body_bytes: int


def make_app(service: Service) -> Starlette:
    """The application; it refuses, with OpenAI's form of errors, what it cannot do."""
    handlers = _Handlers(service)
    return Starlette(
        routes=[
            Route("/", handlers.page),
            Route("/v1/models", handlers.models),
            Route("/v1/models/{model}", handlers.one_model),
            Route("/v1/completions", handlers.completions, methods=["POST"]),
            Route("/healthz", handlers.health),
            Route("/metrics", handlers.metrics),
        ],
        exception_handlers={
            ClientDisconnect: _nobody,
            HTTPException: _refusal,
            MiniGPTError: _refusal,
            Exception: _refusal,
        },
    )


async def _refusal(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = RequestError(error.detail, status=error.status_code)
    elif not isinstance(error, RequestError):
        error = RequestError(str(error) or type(error).__name__, status=500)
    return JSONResponse(error.as_json(), status_code=error.status)


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = Metrics()
        self._num_requests = 0
        self._page = files("minigpt.serve").joinpath("page.html").read_text(encoding="utf-8")

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        check_model(request.path_params["model"], self._service.model)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.model,
            "object": "model",
            "created": service.created,
            "owned_by": "minigpt",
            "context_length": service.limits.context_length,
            "step": service.step,
            "num_parameters": service.num_parameters,
            "limits": {"max_tokens": service.limits.max_tokens},
        }

    async def health(self, _: Request) -> Response:
        failure = self._service.batcher.failure
        if failure:
            return JSONResponse({"status": failure}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def completions(self, request: Request) -> Response:
        service, metrics = self._service, self._metrics
        if self._num_requests >= service.max_requests:
            metrics.requests.labels("overloaded").inc()
            raise RequestError(
                f"{service.max_requests} requests are being answered already; try again later",
                status=429,
                code="overloaded",
            )
        self._num_requests += 1
        metrics.in_flight.set(self._num_requests)
        answer = None
        try:
            answer = await self._answer(request)
            if answer.asked.stream:
                return _Events(answer.events(), ended=self._ended)
            return JSONResponse(await _unless_gone(request, answer.whole()))
        except RequestError:
            metrics.requests.labels("refused").inc()
            raise
        finally:
            if answer is None or not answer.asked.stream:
                self._ended()

    def _ended(self) -> None:
        self._num_requests -= 1
        self._metrics.in_flight.set(self._num_requests)

    async def _answer(self, request: Request) -> "_Answer":
        service = self._service
        body = await _read_json(request, service.max_body_bytes)
        asked = parse_request(body, service.model, service.limits)
        texts = await asyncio.to_thread(self._texts, asked)
        return _Answer(service, self._metrics, asked, texts)

    def _texts(self, asked: CompletionRequest) -> list[Continuation]:
        """A text for each choice; those of a prompt follow each other."""
        limit, texts = self._service.limits.context_length, list[Continuation]()
        for prompt in asked.prompts:
            for _ in range(asked.choices_per_prompt):
                make = self._service.generator.continuation
                texts.append(make(prompt, asked.sampling, len(texts)))
            if (length := len(texts[-1].context)) > limit:
                raise RequestError(
                    f"the prompt has {length} tokens; the model's context is {limit}",
                    param="prompt",
                    code="context_length_exceeded",
                )
        return texts


class _Answer:
    """A request being answered."""

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        asked: CompletionRequest,
        texts: list[Continuation],
    ) -> None:
        self.asked = asked
        self._service, self._metrics, self._texts = service, metrics, texts
        self._frame = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model,
        }
        number = asked.choices_per_prompt
        self._choices = [
            ChoiceText(
                index, len(asked.prompts[index // number]), service.tokenizer, asked.logprobs
            )
            for index in range(len(texts))
        ]
        self._prompt_tokens = sum(len(text.context) for text in texts[::number])
        self._started = time.perf_counter()

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete."""
        async with aclosing(self._chunks()) as chunks:
            async for _ in chunks:
                pass
        choices = [choice.whole() for choice in self._choices]
        return {**self._frame, "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncGenerator[str]:
        """The answer as server-sent events, each piece when it is drawn."""
        try:
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    yield _event({**self._frame, "choices": [chunk]})
            if self.asked.usage_in_stream:
                yield _event({**self._frame, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except MiniGPTError as error:
            yield _event(RequestError(str(error), status=500).as_json())

    async def _chunks(self) -> AsyncGenerator[dict[str, Any]]:
        metrics, outcome = self._metrics, "disconnected"
        metrics.prompt_tokens.inc(self._prompt_tokens)
        first = True
        try:
            async with aclosing(self._service.batcher.pieces(self._texts)) as pieces:
                async for index, piece in pieces:
                    if first:
                        metrics.first_token.observe(time.perf_counter() - self._started)
                        first = False
                    metrics.generated_tokens.inc()
                    yield self._choices[index].add(piece)
            outcome = "completed"
            metrics.duration.observe(time.perf_counter() - self._started)
        except MiniGPTError:
            outcome = "failed"
            raise
        finally:
            metrics.requests.labels(outcome).inc()

    def _usage(self) -> dict[str, int]:
        generated = sum(choice.num_tokens for choice in self._choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self._prompt_tokens + generated,
            "window_slides": sum(text.num_slides for text in self._texts),
        }


class _Events(StreamingResponse):
    """Server-sent events; whatever ends them, the generator is closed."""

    def __init__(self, events: AsyncGenerator[str], ended: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        self._events, self._ended = events, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            self._ended()


def _event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


async def _read_json(request: Request, max_bytes: int) -> Any:  # noqa: ANN401 - any JSON
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise RequestError(f"the body is over {max_bytes} bytes long", status=413)
    try:
        return json.loads(data)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, dict[str, Any]]) -> Any:  # noqa: ANN401
    """The answer; or cancel it, where nobody waits for it any more."""
    work = asyncio.create_task(answer)
    watch = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # as nginx notes it; nobody reads it
