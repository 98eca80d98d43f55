"""The commands and their options, and the text about exit codes and signals.

*Rule.* This module imports only modules that every command needs. Importing the gateway takes a
second, which would delay a readiness probe with ``infergate health``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infergate.access.keys import parse_name
from infergate.cli.command import JSON, Command, Operands, Option
from infergate.cli.monitoring import ADMIN, QUERY
from infergate.cli.monitoring import COMMANDS as MONITORING
from infergate.cli.numbers import parse_count, parse_positive
from infergate.cli.probe import COMMAND as PROBE

SERVE: Final = "serve"
REST_PROXY: Final = "rest-proxy"

SIGNALS: Final[Mapping[str, str]] = {
    "SIGTERM, SIGINT": "graceful shutdown: readiness fails, requests in progress finish, then the "
    "process exits; a second signal exits immediately",
    "SIGHUP": "reload the configuration; if it is invalid, the current one stays active",
}
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success: clean shutdown, a valid configuration (check, --check), or the end of top or "
    "--watch with Ctrl-C",
    2: "invalid configuration or command line; for replay and report also a file, server or admin "
    "listener that cannot be used",
    1: "any other failure: an address in use, an unreachable admin listener, a gateway that is "
    "not ready (health), a request that the gateway does not remember (trace), a wrong result "
    "(matrix), a request that is rejected (explain), responses that differ (replay, report), a "
    "damaged recording (record), an address without a known protocol (probe)",
    130: "interrupted with Ctrl-C (all commands except serve, rest-proxy, top and --watch)",
}
"""The exit codes and their meanings."""

EXAMPLES: Final = """\
examples:
  infergate                             serve the demo models
  infergate -c routes.yaml              serve the configuration in routes.yaml
  infergate -c routes.yaml --workers auto
                                        the same, with one worker per CPU
  infergate check routes.yaml           validate routes.yaml, print a summary
  infergate probe http://host:8000      show a server's protocols and models
  infergate matrix                      test all pairs of protocols
  infergate key --name ci               generate an API key and its hash
  infergate new hook guard              generate the package of a request hook
  infergate top                         watch a running gateway
  infergate health --admin http://127.0.0.1:8002
                                        check a running gateway; also: routes,
                                        backends, trace

The keys of routes.yaml are documented in docs/configuration.md, this command
in docs/cli.md."""


def _owner_name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workers(text: str) -> int:
    from infergate.config.fields import MAX_WORKERS  # noqa: PLC0415 - only serve needs it

    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a number from 1 to {MAX_WORKERS} nor 'auto'"
        )
    return int(text)


# ---- options

_FILE: Final = {"type": Path, "metavar": "FILE"}
_FOLDER: Final = {"type": Path, "metavar": "FOLDER"}
_NAME_VALUE: Final = {"metavar": "NAME"}
_REPEATED: Final = {"action": "append", "default": []}
_CONFIG: Final = Option(
    "--config",
    "path of routes.yaml (default: the demo models)",
    _FILE,
    "-c",
)
_CHECK: Final = Option("--check", "validate the configuration, print a summary, and exit")
_WORKERS: Final = Option(
    "--workers",
    "number of worker processes that serve the same ports; auto: one per CPU; takes precedence "
    "over workers in the configuration",
    {"type": _workers, "metavar": "N|auto"},
)
_LOG_FORMAT: Final = Option(
    "--log-format",
    "log format; takes precedence over log.format in the configuration",
    {"choices": ("text", "json")},
)
_PAGE: Final = Option("--page", "print the complete page in Markdown, as in docs/fidelity.md")
_NAME: Final = Option(
    "--name",
    "name of the key's owner, to which access rules refer (default: client)",
    {"type": _owner_name, "metavar": "NAME", "default": "client"},
)
_DIRECTORY: Final = Option(
    "--directory",
    "folder in which the package's folder is created (default: the current folder)",
    _FOLDER | {"default": Path()},
)
_CLIENT_CODE: Final = (
    "curl",
    "tritonclient",
    "tritonclient-grpc",
    "kserve",
    "tensorflow-serving-api",
    "tensorrtserver",
    "graphpipe",
    "all",
)
_HEADER: Final = Option(
    "--header",
    "a header or, for gRPC, metadata; may be repeated",
    _REPEATED | {"metavar": "NAME:VALUE"},
)
_REPLAY: Final = (
    Option(
        "--to",
        "URL of the server; may be repeated, for HTTP and gRPC or for single protocols; {model} in "
        "the URL is replaced by the model's name",
        _REPEATED | {"metavar": "URL|PROTOCOL=URL"},
    ),
    Option(
        "--config",
        "send through the routes of this routes.yaml, not directly to a server",
        _FILE,
        "-c",
    ),
    Option(
        "--protocol",
        "send in this protocol (default: the protocol of the recorded client)",
        _NAME_VALUE,
    ),
    Option(
        "--speed",
        "multiple of the recorded pace (default: 1)",
        {"type": parse_positive, "default": 1.0, "metavar": "FACTOR"},
    ),
    Option(
        "--rate",
        "send this many inferences per second",
        {"type": parse_positive, "metavar": "NUMBER"},
    ),
    Option("--fast", "send as fast as possible"),
    Option(
        "-n", "number of inferences to send (default: all)", {"type": parse_count, "metavar": "N"}
    ),
    Option(
        "--concurrency",
        "maximum number of inferences in progress (default: 32)",
        {"type": parse_count, "default": 32, "metavar": "N"},
    ),
    Option(
        "--compare",
        "file with rules as in mirror.compare, or 'exact' (default: the tolerances of each "
        "datatype)",
        {"metavar": "FILE|exact"},
    ),
    _HEADER,
    Option("--model", "send only inferences of this model", _NAME_VALUE),
    Option(
        "--export",
        "send nothing, and write an input file for perf_analyzer; with --model, and --to or "
        "--config, the model's metadata decides whether inputs have a batch dimension",
        _FILE,
    ),
    Option("--report", "write the result to this file, whose name ends with .html or .json", _FILE),
)
_REPORT: Final = (
    Option("--replay", "show the JSON report of a replay", _FILE),
    Option("--mismatches", "show the mismatches in this folder (mirror.compare.keep)", _FOLDER),
    Option("--html", "write one HTML page to this file", _FILE),
)
_EXPLAIN: Final = (
    Option(
        "--curl",
        "a curl or grpcurl command, in quotes; the command is parsed, but not executed",
        {"metavar": "COMMAND"},
    ),
    Option("--body", "file with the body or, for a gRPC method, the serialized message", _FILE),
    _HEADER,
    Option(
        "--metadata",
        "query the servers for their kind and for the model's metadata; without this option, "
        "nothing is sent",
    ),
    Option("--bytes", "also print the beginning of each message in hexadecimal"),
    Option(
        "--code",
        f"also print the request as code for a client: {', '.join(_CLIENT_CODE)}",
        {"choices": _CLIENT_CODE, "metavar": "CLIENT"},
    ),
    Option("--save", "folder for the tensors that are too long for the code", _FOLDER),
)

_SERVING: Final = (_CHECK, _WORKERS, _LOG_FORMAT)
_ALL: Final = (
    Command(
        SERVE,
        "run the gateway with a configuration, or with the demo models; the default command",
        "serving",
        (_CONFIG, *_SERVING),
    ),
    Command(
        "check",
        "validate a configuration; print its errors, or its warnings and a summary",
        "check",
        (JSON,),
        Operands("FILE", "path of routes.yaml"),
    ),
    Command(
        REST_PROXY,
        "serve V2 REST to the clients of one V2 gRPC server, configured by the environment "
        "variables of kserve/rest-proxy",
        "serving",
        _SERVING,
    ),
    Command(
        "matrix",
        "test translation between all pairs of protocols, and print which results are exact, "
        "converted or rejected",
        "matrix",
        (_PAGE,),
    ),
    Command(
        "explain",
        "show which route a request takes and why, the message that each backend would receive, "
        "and the request as code for several clients; no inference is sent",
        "explain",
        (_CONFIG, *_EXPLAIN, JSON),
        Operands(
            "REQUEST",
            "a file with a curl or grpcurl command; RECORDING#NUMBER; an HTTP method and a path; "
            "or a gRPC method such as /inference.GRPCInferenceService/ModelInfer",
            "*",
        ),
    ),
    Command(
        "replay",
        "send recorded inferences to another server, and compare its responses with the recorded "
        "responses",
        "replay",
        (*_REPLAY, JSON),
        Operands(
            "FILE",
            "recording files, folders of them, or one .json input file of perf_analyzer",
            "+",
        ),
        "exit codes: 0 if all responses are equal, 1 if any differs or is missing,\n"
        "2 if a file or an option is invalid.",
    ),
    Command(
        "report",
        "show the compared responses of a running gateway, of a replay, or of stored mismatches",
        "report",
        (ADMIN, *_REPORT, JSON),
    ),
    Command(
        "key",
        "generate an API key, and print it with its hash for the configuration",
        "key",
        (_NAME,),
    ),
    *MONITORING,
    Command(
        "record",
        "start or stop recording in a running gateway, show its status, or list recording files",
        "recording",
        QUERY,
        Operands(
            "ACTION",
            "start, stop or status: control the gateway at --admin, with the key in "
            "INFERGATE_ADMIN_KEY if it is set; show FILE…: list the inferences and the damaged "
            "parts of recording files or folders",
            "+",
        ),
        "examples:\n  infergate record status\n  infergate record show recordings/",
    ),
    Command(
        "new",
        "generate the package of a plug-in, with its entry point and with tests that pass",
        "new",
        (_DIRECTORY,),
        Operands(
            "KIND NAME", "codec, backend, hook or transform; and the name of the package", "*"
        ),
        "example:\n  infergate new hook guard && cd guard && pip install -e '.[test]' && pytest",
    ),
    PROBE,
    Command("schema", "print the JSON schema of routes.yaml, for editors", "schema"),
    Command(
        "completion",
        "print a script that completes commands and options in a shell",
        "completion",
        operands=Operands("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
        details="examples:\n"
        "  source <(infergate completion bash)              in ~/.bashrc\n"
        "  source <(infergate completion zsh)               in ~/.zshrc, after compinit\n"
        "  infergate completion fish > ~/.config/fish/completions/infergate.fish",
    ),
)
COMMANDS: Final[Mapping[str, Command]] = {command.name: command for command in _ALL}
"""The commands by name."""
