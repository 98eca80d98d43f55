"""argv to exit codes: 0 stopped cleanly, 2 the configuration is wrong, 1 anything else."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence

from infergate.cli.arguments import KEY, MATRIX, TELLING, Arguments, parse
from infergate.cli.key import key
from infergate.cli.summary import summary
from infergate.config.check import ONE_WORKER
from infergate.config.files import Files
from infergate.config.load import load
from infergate.config.mistakes import ConfigError, Mistake
from infergate.config.schema import Config

_STOPPED, _FAILED, _WRONG = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. argparse itself exits with 2, or 0 after --help and --version."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if arguments.command == MATRIX:
        from infergate.cli.matrix import show  # noqa: PLC0415 - serving needs none of it

        return show(page=arguments.page)
    if arguments.command == KEY:
        print(key(arguments.name or "client"), end="")
        return _STOPPED
    if arguments.command in TELLING:
        from infergate.cli.telling import tell  # noqa: PLC0415 - serving needs none of it

        return tell(arguments.command, arguments.admin, as_json=arguments.json)
    try:
        if arguments.check:
            print(summary(_configuration(arguments, Files())), end="")
            return _STOPPED
        return _serve(arguments)
    except ConfigError as error:
        for mistake in error.mistakes:
            print(mistake, file=sys.stderr)
        return _WRONG


def _configuration(arguments: Arguments, files: Files) -> Config:
    """What the file says, or the embedded demo, under what the command line says. Raises
    ConfigError."""
    source = arguments.config
    config = Config.default() if source is None else load(source, os.environ, files)
    if arguments.log_format is not None:
        log = config.log.model_copy(update={"format": arguments.log_format})
        config = config.model_copy(update={"log": log})
    if arguments.workers is not None:
        config = config.model_copy(update={"workers": arguments.workers})
        if config.workers > 1 and config.control.shared_memory:
            raise ConfigError([Mistake("--workers", 0, "control.shared_memory", ONE_WORKER)])
    return config


def _serve(arguments: Arguments) -> int:
    from infergate.runtime.serve import serve  # noqa: PLC0415 - --check and --help need no server

    try:
        return serve(functools.partial(_configuration, arguments), arguments.config)
    except OSError as error:
        _tell(str(error))
        return _FAILED
    except KeyboardInterrupt:
        return _STOPPED


def _tell(message: str) -> None:
    print(f"infergate: {message}", file=sys.stderr)
