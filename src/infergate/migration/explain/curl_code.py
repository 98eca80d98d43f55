"""Writes a request as a curl command."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

from infergate.codecs.wire_format import query_parameters
from infergate.core.credential_names import may_hold_credentials
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest
from infergate.core.wire import HttpRequest, join_parts
from infergate.migration.explain.client_inference import (
    ClientInference,
    NoClientCodeError,
    variable_name,
)
from infergate.migration.recorded import DEFAULT_PROTOCOL, client_message

_MAX_ARGUMENT_BYTES: Final = 64 * 1024
"""Maximum size of a body in a command. Linux limits an argument to 128 KiB."""
_OWN_HEADERS: Final = frozenset({"host", "content-length", "connection", "user-agent"})
"""Headers that curl adds itself."""


def curl_code(inference: ClientInference) -> str:
    """Return a curl command for the client's HTTP message, or for a V2 REST message if the client
    used gRPC. Raises NoClientCodeError."""
    wire, headers = inference.wire, dict(inference.headers)
    if wire is None:
        wire = _v2_rest(inference.request)
        headers = inference.own_headers() | dict(wire.headers)
    parts = [f"curl {_url(inference.addresses.http_url() + wire.path, wire.query)}"]
    body = bytes(join_parts(wire.body)) if wire.body else b""
    if wire.method != ("POST" if body else "GET"):
        parts.append(f"-X {shlex.quote(wire.method)}")
    for name, value in headers.items():
        if name not in _OWN_HEADERS and (name, value) != ("accept", "*/*"):
            parts.append(f"-H {_header(name, value)}")
    prefix = ""
    if body:
        prefix, argument = _body(body, inference.folder)
        parts.append(argument)
    return prefix + " \\\n  ".join(parts) + "\n"


def _url(url: str, query: str) -> str:
    """Return the URL as shell text. The command reads credentials in ``query`` from the
    environment."""
    text = ""
    separator = "?"
    for name, value, is_credential in query_parameters(query):
        url += separator + name
        separator = "&"
        if is_credential:
            text += f'{shlex.quote(f"{url}=")}"${variable_name(unquote_plus(name))}"'
            url = ""
        else:
            url += value
    return text + (shlex.quote(url) if url else "")


def _header(name: str, value: str) -> str:
    if may_hold_credentials(name):
        return f'{shlex.quote(f"{name}: ")}"${variable_name(name)}"'
    return shlex.quote(f"{name}: {value}")


def _body(body: bytes, folder: Path | None) -> tuple[str, str]:
    """Return the text before the curl command, and curl's argument for ``body``."""
    if len(body) > _MAX_ARGUMENT_BYTES:
        file = (folder or Path()) / "body.bin"
        prefix = "# write body.bin with --save FOLDER\n"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
            prefix = ""
        return prefix, f"--data-binary {shlex.quote(f'@{file}')}"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.startswith("@") or not text.replace("\n", " ").isprintable():
        return f"echo {base64.b64encode(body).decode()} | base64 -d |\n", "--data-binary @-"
    return "", f"--data-binary {shlex.quote(text)}"


def _v2_rest(request: InferRequest) -> HttpRequest:
    try:
        wire = client_message(DEFAULT_PROTOCOL, request)
    except GatewayError as error:
        raise NoClientCodeError(error.public) from None
    assert isinstance(wire, HttpRequest)
    return wire
