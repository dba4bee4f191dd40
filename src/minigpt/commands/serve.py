"""``minigpt serve``."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro
from tyro.conf import Positional

from minigpt.config import ParallelConfig
from minigpt.config_rules import at_least, require


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Serve a run over HTTP: OpenAI's /v1/completions and a page to try it."""

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for every network, where anyone who reaches it may use it."""
    port: int = 8000
    """Port to listen at; 0: any that is free."""
    rows: int = 16
    """Texts that are continued together; more wait."""
    max_requests: int = 128
    """Requests that are answered or wait at once; more are refused with status 429."""
    max_tokens: int = 1024
    """New tokens that a request may ask for, for each text."""
    max_body_bytes: int = 2**20
    """Length of a request's body."""
    parallel: ParallelConfig = field(default_factory=lambda: ParallelConfig(data=1))
    """The mesh to generate on."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "serve", 1, "rows", "max_requests", "max_tokens", "max_body_bytes")
        require(0 <= self.port < 2**16, f"--port must be between 0 and 65535, got {self.port}")


def run(arguments: list[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options = tyro.cli(ServeArguments, prog="minigpt serve", args=arguments)
    from minigpt.launch.runtime import keep_programs
    from minigpt.parallel.mesh import use_virtual_devices
    from minigpt.serve.server import ServerConfig, serve_run
    from minigpt.train.console import make_console

    use_virtual_devices(options.parallel)
    keep_programs(options.run.parent / ".compiled")
    config = ServerConfig(
        host=options.host,
        port=options.port,
        rows=options.rows,
        max_requests=options.max_requests,
        max_tokens=options.max_tokens,
        max_body_bytes=options.max_body_bytes,
    )
    serve_run(options.run, options.parallel, config, make_console(stderr=True).print)
