"""Declares ``top``, ``routes``, ``backends``, ``health`` and ``trace``, which query the admin
listener of a running gateway."""

from __future__ import annotations

import argparse
from typing import Final

from infergate.cli.admin_client import parse_admin_url
from infergate.cli.command import JSON, Command, Operands, Option
from infergate.cli.numbers import parse_count, parse_positive

_DEFAULT_ADMIN: Final = "http://127.0.0.1:8002"


def _admin_url(text: str) -> str:
    try:
        return parse_admin_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


ADMIN: Final = Option(
    "--admin",
    f"URL of the gateway's admin listener (default: {_DEFAULT_ADMIN})",
    {"type": _admin_url, "metavar": "URL", "default": _DEFAULT_ADMIN},
)
QUERY: Final = (ADMIN, JSON)
_REPEAT: Final = (
    Option(
        "--interval",
        "seconds between two updates (default: 2)",
        {"type": parse_positive, "default": 2.0, "metavar": "SECONDS"},
    ),
    Option(
        "--count",
        "print this number of updates, then exit",
        {"type": parse_count, "metavar": "N"},
    ),
)
_WATCHED: Final = (*QUERY, Option("--watch", "update the output until Ctrl-C"), *_REPEAT)
_WAIT: Final = Option(
    "--wait",
    "wait until the gateway is ready, but at most this number of seconds",
    {"type": parse_positive, "metavar": "SECONDS"},
)

COMMANDS: Final = (
    Command(
        "top",
        "continuously show the traffic of a running gateway: rates, errors and latencies by "
        "route and backend, failures first",
        "top",
        (*QUERY, *_REPEAT),
    ),
    Command(
        "routes",
        "show the routes of a running gateway: backend, requests, errors and latencies",
        "output",
        _WATCHED,
    ),
    Command(
        "backends",
        "show the backends of a running gateway: traffic, retries, queue and endpoint health",
        "output",
        _WATCHED,
    ),
    Command(
        "health",
        "show the readiness, listeners and endpoints of a running gateway",
        "output",
        (*_WATCHED, _WAIT),
    ),
    Command(
        "trace",
        "show a failed or slow request of a running gateway: its outcome, timeline and inputs",
        "trace",
        QUERY,
        Operands("REQUEST-ID", "the request's x-request-id, which every error response contains"),
    ),
)
