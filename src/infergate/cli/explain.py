"""``infergate explain``: shows the route of a request, and the message that each backend would
receive."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

from infergate.cli.command import Arguments
from infergate.config import compile as compiled
from infergate.config.load import load
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.migration.explain.client_code import CLIENTS, code_of
from infergate.migration.explain.client_inference import ClientInference
from infergate.migration.explain.client_request import (
    ClientRequest,
    RequestError,
    http_request,
    is_rpc_method,
    parse_command,
    parse_headers,
    read_file,
    recorded_request,
    rpc_request,
)
from infergate.migration.explain.explanation import (
    ExplainOptions,
    Explanation,
    ModelMetadata,
    explain,
)
from infergate.migration.explain.explanation_text import as_json, as_text
from infergate.migration.explain.listeners import client_addresses
from infergate.plugin_host.loading import PluginError

ALL: Final = "all"
_EXPLAINED, _REJECTED, _ERROR = 0, 1, 2


def run(arguments: Arguments) -> int:
    """Explain the request that ``arguments`` describe, and return the exit code."""
    try:
        config = (
            Config.default() if arguments.config is None else load(arguments.config, os.environ)
        )
        request, recorded = _request(arguments, compiled.limits(config).body)
        options = ExplainOptions(arguments.metadata, recorded)
        explanation = asyncio.run(explain(config, request, options))
        code = _code(arguments, config, request, explanation)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return _ERROR
    except (PluginError, RequestError) as error:
        print(f"infergate explain: {error}", file=sys.stderr)
        return _ERROR
    if arguments.json:
        print(json.dumps(as_json(explanation) | ({"code": code} if code else {}), indent=2))
    else:
        print(as_text(explanation, shows_bytes=arguments.bytes), end="")
        for client, text in code.items():
            print(f"\n---- {client} ----\n{text}", end="")
    is_sent = not explanation.targets or any(not each.error for each in explanation.targets)
    return _EXPLAINED if is_sent and not explanation.error else _REJECTED


def _request(arguments: Arguments, max_bytes: int) -> tuple[ClientRequest, ModelMetadata | None]:
    """Return the request and, for a recorded request, the model's metadata. Raises RequestError."""
    operands = arguments.operands
    file, _, number = operands[0].rpartition("#") if len(operands) == 1 else ("", "", "")
    if file and number.isascii() and number.isdecimal() and Path(file).is_file():
        return recorded_request(Path(file), int(number))
    if arguments.curl is None:
        return _request_from_operands(arguments, max_bytes), None
    if operands:
        raise RequestError("expected either --curl or a REQUEST, not both")
    return parse_command(arguments.curl, max_bytes, Path()), None


def _request_from_operands(arguments: Arguments, max_bytes: int) -> ClientRequest:
    body = b"" if arguments.body is None else read_file(arguments.body, max_bytes)
    headers = parse_headers(arguments.header)
    match arguments.operands:
        case (method, path) if not method.startswith("/"):
            return http_request(method.upper(), path, headers, body)
        case (method,) if is_rpc_method(method):
            return rpc_request(method, body, headers)
        case (name,):
            text = read_file(Path(name), max_bytes).decode(errors="replace")
            return parse_command(text, max_bytes, Path(name).parent)
        case _:
            raise RequestError(
                "expected a file with a curl or grpcurl command, RECORDING#NUMBER, 'METHOD PATH', "
                "a gRPC method, or --curl"
            )


def _code(
    arguments: Arguments, config: Config, request: ClientRequest, explanation: Explanation
) -> dict[str, str]:
    """Return the request as code for the clients that ``arguments`` select, by client name."""
    if arguments.code is None or explanation.inference is None:
        return {}
    addresses = client_addresses(config, request)
    inference = ClientInference.of(
        request, explanation.inference, addresses, explanation.metadata, arguments.save
    )
    return code_of(CLIENTS if arguments.code == ALL else (arguments.code,), inference)
