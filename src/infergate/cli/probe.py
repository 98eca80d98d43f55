"""``infergate probe``: shows the protocols and models of servers, and writes a configuration for
them."""

# ruff: noqa: PLC0415 - parsing the command line does not need the modules of the probe

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from infergate.cli.command import JSON, Arguments, Command, Operands, Option

if TYPE_CHECKING:
    from infergate.migration.probe.example_requests import ExampleRequest
    from infergate.migration.probe.findings import ProbeFindings
    from infergate.migration.probe.options import ProbeOptions

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e]*)")
_HTTP_PORT: Final = 8000
_MIN_SECONDS: Final = 0.01
_MAX_SECONDS: Final = 600.0
_DONE, _FAILED, _USAGE_ERROR = 0, 1, 2

_EXAMPLES: Final = """\
examples:
  infergate probe http://triton:8000 grpc://triton:8001
                                 show protocols, models and example requests
  infergate probe triton:8001 --write routes.yaml
                                 also write a configuration that serves them
  infergate probe grpc://tf:8500 --model half_plus_two
                                 TensorFlow Serving cannot list its models
  infergate probe http://old:8000 --against grpc://new:8001 --write routes.yaml
                                 write a mirror that compares a new server

An address is a URL (http, https, grpc, grpcs, tcp, unix, http+unix) or
host:port, where all protocols are tried. No inference is sent, and nothing on
the servers is changed."""


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("expected 'name: value'")  # the value may be secret
    return match[1].lower(), match[2].strip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        limits = f"{_MIN_SECONDS} to {_MAX_SECONDS:g}"
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from {limits}")
    return seconds


def run(arguments: Arguments) -> int:
    """Probe the addresses. Return 0 if every address speaks a protocol and any requested file was
    written, 2 for invalid arguments, and otherwise 1."""
    import asyncio
    import logging

    from infergate.migration.probe.options import ProbeOptions
    from infergate.migration.probe.prober import Prober
    from infergate.migration.probe.targets import parse_target

    try:
        targets = [parse_target(text) for text in dict.fromkeys(arguments.operands)]
        new_targets = [parse_target(text) for text in dict.fromkeys(arguments.against)]
    except ValueError as error:
        return _usage_error(str(error))
    if arguments.force and arguments.write is None:
        return _usage_error("--force requires --write")
    if arguments.write is not None and arguments.write.exists() and not arguments.force:
        return _usage_error(f"{arguments.write} exists; --force replaces it")
    if arguments.ca is not None and arguments.insecure:
        return _usage_error("use only one of --ca and --insecure")
    if arguments.ca is not None and not arguments.ca.is_file():
        return _usage_error(f"{arguments.ca} is not a file")
    # Failed attempts are not logged, because the findings report them.
    logger = logging.getLogger("infergate")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    options = ProbeOptions(
        arguments.timeout,
        arguments.model,
        dict(arguments.header),
        arguments.ca,
        verify=not arguments.insecure,
    )
    findings = asyncio.run(Prober(options).probe(targets))
    new = asyncio.run(Prober(options).probe(new_targets))
    return _print_and_write(arguments, findings, new, options)


def _print_and_write(
    arguments: Arguments, old: ProbeFindings, new: ProbeFindings, options: ProbeOptions
) -> int:
    from infergate.config.values import Url
    from infergate.migration.probe import report
    from infergate.migration.probe.example_requests import GatewayAddress, example_request
    from infergate.migration.probe.listener_ports import HOST, ListenerPorts
    from infergate.migration.probe.routes_file import compose_routes

    problem, routes = "", None
    if arguments.write is not None:
        if not old.servers or (arguments.against and not new.servers):
            problem = "nothing was written, because no server was found"
        else:
            ports = ListenerPorts(item.target for item in (*old.targets, *new.targets))
            file = str(arguments.write)
            routes = compose_routes(file, old.servers, new.servers, options, ports)
            problem = _write(arguments.write, routes.text, force=arguments.force)
    gateway = GatewayAddress(Url("http", HOST, _HTTP_PORT))
    if routes is not None:
        gateway = GatewayAddress(Url("http", HOST, routes.http_port), routes.names)
    limit = report.MAX_JSON_EXAMPLES if arguments.json else report.MAX_TEXT_EXAMPLES
    examples = [
        [example_request(server, model, options, gateway) for model in server.models[:limit]]
        for server in old.servers
    ]
    if arguments.json:
        _print_json(old, new, examples)
    else:
        _print_text(arguments, old, new, examples)
        if routes is not None and not problem:
            print(f"{arguments.write} was written; next: infergate --config {arguments.write}")
    if problem:
        print(f"infergate probe: {problem}", file=sys.stderr)
    failed = problem or any(item.problem for item in (*old.targets, *new.targets))
    return _FAILED if failed else _DONE


def _print_json(
    old: ProbeFindings, new: ProbeFindings, examples: Sequence[Sequence[ExampleRequest]]
) -> None:
    from infergate.migration.probe.report import as_json, json_text

    document = as_json(old, examples)
    if new.targets:
        document["against"] = as_json(new, [() for _ in new.servers])
    print(json_text(document))


def _print_text(
    arguments: Arguments,
    old: ProbeFindings,
    new: ProbeFindings,
    examples: Sequence[Sequence[ExampleRequest]],
) -> None:
    from infergate.migration.probe import report
    from infergate.terminal import print_tables

    print_tables([*report.tables(old), *(report.tables(new) if new.targets else ())])
    remarks = [*report.remarks(old, arguments.model), *report.remarks(new, ())]
    for remark in remarks:
        print(f"\n{remark}")
    requests = [item for each in examples for item in each]
    omitted = sum(len(server.models) for server in old.servers) - len(requests)
    if text := report.example_text(requests, omitted):
        print(f"\n{text}")


def _write(path: Path, text: str, *, force: bool) -> str:
    """Write the configuration. Return the problem, or an empty string."""
    from infergate.config.mistakes import ConfigError
    from infergate.migration.probe.new_file import ConfigurationExistsError, write_configuration

    try:
        write_configuration(path, text, force=force)
    except ConfigurationExistsError:
        return f"{path} was created in the meantime; --force replaces it"
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    except ConfigError as error:
        return f"nothing was written, because of a bug: the configuration is invalid\n{error}"
    return ""


def _usage_error(message: str) -> int:
    print(f"infergate probe: error: {message}", file=sys.stderr)
    return _USAGE_ERROR


COMMAND: Final = Command(
    "probe",
    "detect the protocols, the server and the models at addresses, print requests for them, and "
    "write a configuration that serves them",
    "probe",
    (
        Option(
            "--model",
            "name of a model, for servers that cannot list their models; may be repeated",
            {"action": "append", "default": [], "metavar": "NAME"},
        ),
        Option(
            "--write",
            "write a configuration that serves the models; an existing file is kept",
            {"type": Path, "metavar": "FILE"},
        ),
        Option("--force", "replace an existing file"),
        Option(
            "--against",
            "addresses of a new server: pair its models with those of the old server, and write "
            "mirrors that compare the responses",
            {"nargs": "+", "action": "extend", "default": [], "metavar": "NEW_URL"},
        ),
        Option(
            "--header",
            "a header or, for gRPC, metadata of every request, such as credentials; it is not "
            "written to the file; may be repeated",
            {"type": _header, "action": "append", "default": [], "metavar": "NAME:VALUE"},
        ),
        Option(
            "--ca",
            "PEM file with the authority that issued the servers' certificates",
            {"type": Path, "metavar": "FILE"},
        ),
        Option("--insecure", "do not verify the servers' certificates"),
        Option(
            "--timeout",
            "timeout of each attempt in seconds (default: 5)",
            {"type": _seconds, "metavar": "SECONDS", "default": 5.0},
        ),
        JSON,
    ),
    Operands("URL", "an address to probe, as a URL or host:port", "+"),
    _EXAMPLES,
)
