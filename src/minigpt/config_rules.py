"""Rules that configuration fields share; a broken one names field, value and remedy."""

import math
from collections.abc import Callable

from minigpt.errors import ConfigError


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Raise a ``ConfigError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def at_least(group: object, prefix: str, minimum: float, *names: str) -> None:
    """Fields ``names`` of a group are None or finite numbers of at least ``minimum``."""
    for name in names:
        value = getattr(group, name)
        require(
            value is None or value >= minimum,
            f"{prefix}.{name} must be at least {minimum}, got {value}: use {minimum} or more",
        )
        require(
            value is None or math.isfinite(value),
            f"{prefix}.{name} must be finite, got {value}",
        )


def fraction(group: object, prefix: str, *names: str) -> None:
    """Fields ``names`` of a group are at least 0 and below 1."""
    for name in names:
        value = getattr(group, name)
        require(
            0 <= value < 1,
            f"{prefix}.{name} must be at least 0 and below 1, got {value}",
        )


def divides(
    names: str, sizes: tuple[int, ...], total_name: str, total: int, *, works: Callable[[], str]
) -> None:
    """The product of ``sizes`` divides ``total``; ``works`` says what does, for a message."""
    if total % math.prod(sizes):
        shown = " x ".join(str(size) for size in sizes)
        raise ConfigError(
            f"{names} must divide {total_name}: {total} is not divisible by {shown}; "
            f"the nearest {works()}"
        )


def nearest_divisor(total: int, wanted: int) -> int:
    """The divisor of ``total`` closest to ``wanted`` (the smaller of two equally close)."""
    divisors = (d for d in range(1, total + 1) if total % d == 0)
    return min(divisors, key=lambda divisor: (abs(divisor - wanted), divisor))


def nearest_multiples(value: int, of: int) -> str:
    """The multiples of ``of`` on both sides of ``value``, for a message; 0 is none."""
    below = value // of * of
    return f"{below} or {below + of}" if below else str(of)
