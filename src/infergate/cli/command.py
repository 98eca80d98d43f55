"""The classes that declare the commands of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

SWITCH: Final = {"action": "store_true"}
"""The ``argparse_options`` of an option without a value."""


class Arguments(argparse.Namespace):
    """The parsed command line: the command's name, its operands in order, and the value of each of
    its options as an attribute."""

    command: str
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option. ``argparse_options`` are passed on to ``add_argument``. ``short`` is
    another form of the flag. Several commands may share an option."""

    flag: str
    help: str
    argparse_options: Mapping[str, Any] = field(default_factory=lambda: SWITCH)
    short: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The short form, if any, and the long form."""
        return (self.short, self.flag) if self.short else (self.flag,)

    @property
    def has_value(self) -> bool:
        """Whether a value follows the flag."""
        return self.argparse_options.get("action") != SWITCH["action"]

    @property
    def values(self) -> Sequence[str]:
        """The values or placeholders as shown in the documentation. A switch has none."""
        if "choices" in self.argparse_options:
            return tuple(self.argparse_options["choices"])
        return str(self.argparse_options["metavar"]).split("|") if self.has_value else ()


JSON: Final = Option("--json", "print JSON")
"""The option of commands that can print JSON."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The positional arguments of a command. ``count`` is argparse's ``nargs``: None for one
    operand, ``?`` for an optional operand, ``*`` for any number of operands, ``+`` for one operand
    or more. ``choices`` are the allowed values, or None for any value."""

    metavar: str
    help: str
    count: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def usage(self) -> str:
        """The operands in a usage line."""
        text = f"{self.metavar}…" if self.count in {"*", "+"} else self.metavar
        return f"[{text}]" if self.count in {"*", "?"} else text


@dataclass(frozen=True, slots=True)
class Command:
    """A command. The function ``run`` of ``infergate.cli.<module>`` gets the arguments, runs the
    command, and returns the exit code."""

    name: str
    help: str
    module: str
    options: Sequence[Option] = ()
    operands: Operands | None = None
    details: str = ""
    """Text at the end of the command's help, such as examples."""

    def run(self, arguments: Arguments) -> int:
        """Import the command's module, run the command, and return the exit code."""
        module: Any = import_module(f"infergate.cli.{self.module}")
        code: int = module.run(arguments)
        return code

    @property
    def usage(self) -> str:
        """The command's usage line."""
        parts = (
            f"infergate {self.name}",
            self.operands.usage if self.operands else "",
            "[options]" if self.options else "",
        )
        return " ".join(filter(None, parts))
