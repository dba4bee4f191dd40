"""Counters of the server, in Prometheus's text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """Of one server."""

    def __init__(self) -> None:
        """All 0."""
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "minigpt_requests",
            "Requests for completions, by how they ended",
            ["outcome"],
            registry=self._registry,
        )
        self.prompt_tokens = Counter(
            "minigpt_prompt_tokens", "Tokens of prompts", registry=self._registry
        )
        self.generated_tokens = Counter(
            "minigpt_generated_tokens", "Tokens that were drawn", registry=self._registry
        )
        self.in_flight = Gauge(
            "minigpt_requests_in_flight", "Requests that are answered", registry=self._registry
        )
        self.first_token = Histogram(
            "minigpt_time_to_first_token_seconds",
            "From a request to its first token",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.duration = Histogram(
            "minigpt_request_seconds",
            "From a request to the end of its answer",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)
