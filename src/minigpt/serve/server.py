"""Runs the application for a run directory until a signal comes."""

import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from minigpt.config import ParallelConfig
from minigpt.errors import ConfigError
from minigpt.generate.generator import Generator
from minigpt.model.flops import num_parameters
from minigpt.serve.app import Service, make_app
from minigpt.serve.batcher import Batcher
from minigpt.serve.protocol import Limits
from minigpt.train.restore import RestoredRun, restore_run

_SHUTDOWN_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where to listen, and what to allow."""

    host: str
    port: int
    rows: int
    """Texts that are continued together."""
    max_requests: int
    max_tokens: int
    max_body_bytes: int


def serve_run(
    run: Path, parallel: ParallelConfig, config: ServerConfig, notify: Callable[[str], None]
) -> None:
    """Serve the newest checkpoint of a run; returns after SIGTERM or Ctrl-C.

    Requests that are being answered then have 10 seconds.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
        ConfigError: nothing can listen there, or the mesh does not fit.
    """
    with _listen(config) as listener:
        restored = restore_run(run, parallel, notify)
        generator = Generator.of(restored)
        engine = generator.engine(restored.params, config.rows)
        started = time.perf_counter()
        engine.compile_all()
        notify(f"compiled in {time.perf_counter() - started:.1f} s")
        with Batcher(engine) as batcher:
            service = _service(restored, generator, batcher, config)
            notify(
                f"serving {service.model} (step {service.step}) at "
                f"http://{config.host}:{listener.getsockname()[1]}; Ctrl-C ends it"
            )
            _serve(service, listener)
    notify("stopped")


def _listen(config: ServerConfig) -> socket.socket:
    """The socket, before anything slow: a port that is taken is said at once."""
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"nothing can listen at --host {config.host} --port {config.port}: "
            f"{error.strerror or error}; --port 0 takes any that is free"
        ) from error


def _service(
    restored: RestoredRun, generator: Generator, batcher: Batcher, config: ServerConfig
) -> Service:
    model, tokenizer = restored.config.model, restored.tokenizer
    return Service(
        model=restored.config.run.name,
        step=restored.progress.step,
        created=int(time.time()),
        num_parameters=num_parameters(model, tokenizer.vocab_size),
        generator=generator,
        tokenizer=tokenizer,
        batcher=batcher,
        limits=Limits(context_length=model.seq_length, max_tokens=config.max_tokens),
        max_requests=config.max_requests,
        max_body_bytes=config.max_body_bytes,
    )


def _serve(service: Service, listener: socket.socket) -> None:
    """Answer until a signal comes."""
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
    )
    # uvicorn raises the signal that ended it again, for whoever had a handler before.
    handlers = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
