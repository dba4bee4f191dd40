"""Numbers as people read them."""

import math


def duration(seconds: float) -> str:
    """As 0.123 s, 12.3 s, 2:03 or 1:02:03."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 9.95 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def money(dollars: float) -> str:
    """As $0.0123, $1.23 or $1,234."""
    if dollars and dollars < 1:
        return f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.1e}"
    return f"${dollars:,.0f}" if dollars >= 1000 else f"${dollars:.2f}"


def size(num_bytes: float) -> str:
    """In MiB or GiB."""
    mebibytes = num_bytes / 2**20
    return f"{mebibytes / 1024:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes:.1f} MiB"


def count(number: float) -> str:
    """As 0.123, 950, 12.3 k, 4.56 M or 7.89 G."""
    for least, scale, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(number) >= least:
            return f"{_three_digits(number / scale)}{unit}"
    return _three_digits(number) if number % 1 else f"{number:,.0f}"


def _three_digits(number: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{min(digits, 6)}f}"


def percent(share: float) -> str:
    """As 0.1 % or 45 %."""
    value = 100 * max(0.0, share)
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"
