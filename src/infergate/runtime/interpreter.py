"""The command line of child Python processes."""

from __future__ import annotations

import subprocess
import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls ``main(*arguments)`` of ``module`` in a new process with the
    options and the module path of this interpreter. The option ``-m`` would search the working
    directory first, and would ignore entries that were added to the path at run time."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    program = (
        f"import sys; del sys.argv[0]; arguments = sys.argv[:{len(arguments)}]; "
        f"sys.path[:] = sys.argv[{len(arguments)}:]; "
        f"from {module} import main; main(*arguments)"
    )
    return [sys.executable, *flags, "-c", program, *arguments, *sys.path]
