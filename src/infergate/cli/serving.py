"""``infergate serve`` and ``infergate rest-proxy``, with and without ``--check``."""

from __future__ import annotations

import functools
import os
import sys

from infergate.cli.command import Arguments
from infergate.cli.commands import REST_PROXY
from infergate.cli.rest_proxy import rest_proxy_config
from infergate.cli.summary import summary
from infergate.config.check import ONE_WORKER
from infergate.config.load import load
from infergate.config.mistakes import ConfigError, Mistake
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.plugin_host.loading import PluginError

_STOPPED, _FAILED, _ERROR = 0, 1, 2


def run(arguments: Arguments) -> int:
    """Run the gateway, or check its configuration. Return the exit code."""
    try:
        if arguments.check:
            config = _configuration(arguments, TrackedFiles())
            for warning in config.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            print(summary(config), end="")
            return _STOPPED
        return _serve(arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return _ERROR


def _configuration(arguments: Arguments, files: TrackedFiles) -> Config:
    """Return the configuration of the command with the command line's overrides. Without a file,
    ``serve`` uses the embedded demo. Raises ConfigError."""
    if arguments.command == REST_PROXY:
        config = rest_proxy_config(os.environ)
    else:
        path = arguments.config
        config = Config.default() if path is None else load(path, os.environ, files)
    if arguments.log_format is not None:
        log = config.log.model_copy(update={"format": arguments.log_format})
        config = config.model_copy(update={"log": log})
    if arguments.workers is not None:
        config = config.model_copy(update={"workers": arguments.workers})
        if config.workers > 1 and config.control.shared_memory:
            raise ConfigError([Mistake("--workers", 0, "control.shared_memory", ONE_WORKER)])
    return config


def _serve(arguments: Arguments) -> int:
    # These imports are slow, and --check does not need them.
    from infergate.cli.served_gateway import ServedGateway  # noqa: PLC0415
    from infergate.runtime.serve import serve  # noqa: PLC0415

    source = None if arguments.command == REST_PROXY else arguments.config
    try:
        return serve(functools.partial(_configuration, arguments), source, ServedGateway)
    except (OSError, PluginError) as error:
        print(f"infergate: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return _STOPPED
