"""``infergate check``: validates a configuration without serving it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infergate.cli.command import Arguments
from infergate.cli.summary import summary
from infergate.config.load import load
from infergate.config.mistakes import ConfigError, Mistake

_VALID, _INVALID = 0, 2


def run(arguments: Arguments) -> int:
    """Print the errors of a configuration or, if there are none, its summary and warnings. Return
    the exit code, which warnings do not affect."""
    path = Path(arguments.operands[0])
    try:
        config = load(path, os.environ)
    except ConfigError as error:
        if arguments.json:
            _print_json(path, error.mistakes, ())
        else:
            for mistake in error.mistakes:
                print(f"error: {mistake}", file=sys.stderr)
            print(f"{path}: {_count(len(error.mistakes), 'error')}", file=sys.stderr)
        return _INVALID
    if arguments.json:
        _print_json(path, (), config.warnings)
        return _VALID
    print(summary(config), end="", flush=True)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{path}: valid, {_count(len(config.warnings), 'warning')}", file=sys.stderr)
    return _VALID


def _print_json(path: Path, errors: Iterable[Mistake], warnings: Iterable[Mistake]) -> None:
    mistakes = [asdict(each) for each in errors]
    document: dict[str, Any] = {
        "file": str(path),
        "valid": not mistakes,
        "errors": mistakes,
        "warnings": [asdict(each) for each in warnings],
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
