"""Reprints every figure of docs/performance.md for this machine, as one JSON object.

    uv run python benchmarks

Each script runs in processes of its own: they need different numbers of devices.
"""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = ("measure", "step_profile", "flags", "parallel", "generation")


def figures(script: str) -> dict[str, object]:
    """What a script prints: JSON objects, one after the other."""
    path = Path(__file__).with_name(f"{script}.py")
    command = [sys.executable, str(path)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, object] = {}
    decoder, place = json.JSONDecoder(), 0
    while place < len(text.rstrip()):
        entry, place = decoder.raw_decode(text, place)
        found |= entry
        place += 1  # the end of the line
    return found


if __name__ == "__main__":
    print(json.dumps({script: figures(script) for script in SCRIPTS}, indent=1))
