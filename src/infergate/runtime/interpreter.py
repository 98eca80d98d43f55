"""The command line of child Python processes."""

from __future__ import annotations

import subprocess
import sys


def python_command(program: str) -> list[str]:
    """Return the command that runs ``program`` with the options of this interpreter, such as ``-I``
    and ``-W``, as multiprocessing does."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return [sys.executable, *flags, "-c", program]
