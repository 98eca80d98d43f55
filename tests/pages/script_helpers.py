"""A helper that a page's script calls after its commands: ``python -m pages.script_helpers printed
OUTPUT EXPECTED`` compares two files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

_ANY: Final = "…"


def printed(output: str, expected: str) -> bool:
    """Return whether the whole output matches; ``…`` stands for any text or lines. Trailing
    spaces, and empty lines at both ends, are ignored."""
    lines = [line.rstrip() for line in expected.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == _ANY
        else ".*".join(map(re.escape, line.split(_ANY))) + r"\n"
        for line in lines
    )
    trimmed = "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, trimmed) is not None


if __name__ == "__main__":
    _, output, expected = sys.argv[1:]
    text = Path(expected).read_text()
    if not printed(Path(output).read_text(errors="replace"), text):
        sys.exit(f"\n*** differs from the output on the page:\n{text}")
