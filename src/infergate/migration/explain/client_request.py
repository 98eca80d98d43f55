"""Builds the request for ``infergate explain`` from a curl or grpcurl command, from a URL or gRPC
method with headers and a body, or from a recording.

*Rule.* Files of more than ``max_bytes`` are rejected, as the gateway rejects bodies beyond
``limits.body``. Commands are parsed but not executed, and shell variables are not expanded."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from google.protobuf import json_format

from infergate.codecs.protos import SCHEMA
from infergate.core.errors import GatewayError
from infergate.core.messages import ModelMetadata
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.migration.recorded import recorded_message, recorded_metadata
from infergate.migration.replay.entries import read_entry
from infergate.recording.format import RecordingError
from infergate.recording.redaction import BODY

_HTTP_PORTS: Final = {"http": 80, "https": 443}
_IGNORED_SWITCHES: Final = frozenset(
    {
        "-s", "--silent", "-S", "--show-error", "-v", "--verbose", "-k", "--insecure",
        "-i", "--include", "-L", "--location", "-f", "--fail", "-N", "--no-buffer", "-g",
        "--globoff", "-#", "--progress-bar", "-4", "--ipv4", "-6", "--ipv6", "--http1.1",
        "--http2", "--http2-prior-knowledge", "--fail-with-body", "-plaintext",
        "-insecure",
    }
)  # fmt: skip
_IGNORED_OPTIONS: Final = frozenset(
    {
        "-o", "--output", "-w", "--write-out", "-m", "--max-time", "--connect-timeout",
        "--retry", "--cacert", "--cert", "--key", "--resolve", "--unix-socket", "-x",
        "--proxy", "--noproxy", "-proto", "-import-path", "-protoset", "-cacert", "-cert",
        "-key", "-authority", "-max-time", "-connect-timeout", "-max-msg-sz",
    }
)  # fmt: skip
_SHORT_WITH_VALUE: Final = "XHdouAwmxeTb"
_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~"


class RequestError(ValueError):
    """The request cannot be read. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request to the gateway. ``authority`` is the ``host:port`` to which the request was sent,
    or empty if unknown."""

    wire: HttpRequest | RpcRequest
    authority: str = ""
    is_tls: bool = False


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a file of at most ``max_bytes``. Raises RequestError."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise RequestError(f"{path} has more than {max_bytes} bytes (limits.body)")
    return data


def parse_command(text: str, max_bytes: int, folder: Path) -> ClientRequest:
    """Parse a curl or grpcurl command. ``folder`` is the base of the command's relative paths.
    Raises RequestError."""
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    try:
        words = shlex.split(joined)
    except ValueError as error:
        raise RequestError(f"the command cannot be parsed: {error}") from None
    parsers = {"curl": _parse_curl, "grpcurl": _parse_grpcurl}
    parse = parsers.get(Path(words[0]).name) if words else None
    if parse is None:
        raise RequestError("expected a command that starts with curl or grpcurl")
    return parse(_Command(words[1:], lambda name: read_file(folder / name, max_bytes)))


def http_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> ClientRequest:
    """Return an HTTP request. ``url`` may lack the scheme and the host. Raises RequestError."""
    parts = urlsplit(url if "://" in url or url.startswith("/") else f"http://{url}")
    if parts.scheme not in ("", *_HTTP_PORTS):
        raise RequestError(f"{url}: expected http:// or https://")
    try:
        port = parts.port or _HTTP_PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise RequestError(f"{url}: {error}") from None
    host = parts.hostname or ""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    wire = HttpRequest(
        method,
        quote(parts.path or "/", safe=_PATH_CHARACTERS),
        parts.query,
        headers,
        (body,) if body else (),
    )
    return ClientRequest(wire, authority if host else "", parts.scheme == "https")


def rpc_request(
    method: str, message: bytes, metadata: Mapping[str, str], authority: str = ""
) -> ClientRequest:
    """Return a gRPC request. ``method`` is ``package.Service/Method``."""
    return ClientRequest(RpcRequest(f"/{method.lstrip('/')}", (message,), metadata), authority)


def parse_headers(lines: Iterable[str]) -> dict[str, str]:
    """Parse headers from ``name: value`` lines. Raises RequestError."""
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise RequestError(f"header '{line[:80]}': expected 'name: value'")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class _Command:
    """The options and arguments of a command line."""

    def __init__(self, words: Sequence[str], read: Callable[[str], bytes]) -> None:
        self.read: Final = read
        self.arguments: Final[list[str]] = []
        self.options: Final[list[tuple[str, str]]] = []
        """The options with their values, in order. The value of a switch is empty."""
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word == "-":
                self.arguments.append(word)
                continue
            for option, attached in _split_word(word):
                if option in _IGNORED_SWITCHES:
                    continue
                if option in _SWITCHES:
                    self.options.append((option, ""))
                    continue
                value = attached or next(rest, None)
                if option not in _IGNORED_OPTIONS | _VALUED or value is None:
                    raise RequestError(
                        f"option '{option}' of the command is not supported or has no value"
                    )
                if option in _VALUED:
                    self.options.append((option, value))

    def values(self, *names: str) -> list[str]:
        """Return the values of the option with the spellings ``names``."""
        return [value for option, value in self.options if option in names]

    def has(self, *names: str) -> bool:
        return any(option in names for option, _ in self.options)


_SWITCHES: Final = frozenset(["-G", "--get", "-I", "--head", "--compressed"])
_VALUED: Final = frozenset(
    {
        "-X", "--request", "-H", "--header", "-d", "--data", "--data-raw", "--data-binary",
        "--data-ascii", "--data-urlencode", "--json", "-u", "--user", "-A", "--user-agent",
        "--url", "-T", "--upload-file", "-rpc-header",
    }
)  # fmt: skip


def _split_word(word: str) -> Iterable[tuple[str, str]]:
    """Split ``--name=value``, ``-Xvalue`` and combined switches such as ``-sS``."""
    if word in _IGNORED_SWITCHES | _SWITCHES | _VALUED | _IGNORED_OPTIONS:
        yield word, ""
    elif word.startswith("--"):
        name, _, value = word.partition("=")
        yield name, value
    else:
        for index, letter in enumerate(word[1:], 2):
            if letter in _SHORT_WITH_VALUE:
                yield f"-{letter}", word[index:]
                return
            yield f"-{letter}", ""


def _parse_curl(command: _Command) -> ClientRequest:
    urls = [*command.values("--url"), *command.arguments]
    if len(urls) != 1:
        raise RequestError(f"the curl command has {len(urls)} URLs; expected one")
    defaults: dict[str, str] = {"accept": "*/*"}
    body = _curl_body(command, defaults)
    for user in command.values("-u", "--user"):
        defaults["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    for agent in command.values("-A", "--user-agent"):
        defaults["user-agent"] = agent
    if command.has("--compressed"):
        defaults["accept-encoding"] = "deflate, gzip, br, zstd"
    lines = command.values("-H", "--header")
    removed = {line[:-1].strip().lower() for line in lines if line.endswith(":")}
    own = parse_headers(line for line in lines if not line.endswith(":"))
    headers = {name: value for name, value in defaults.items() if name not in removed} | own
    url = urls[0]
    method = "GET" if body is None else "POST"
    if body is not None and command.has("-G", "--get"):
        url += f"{'&' if '?' in url else '?'}{body.decode(errors='replace')}"
        method, body = "GET", None
        headers.pop("content-type", None)
    if command.has("-I", "--head"):
        method = "HEAD"
    if command.has("-T", "--upload-file"):
        method = "PUT"
    method = next(iter(command.values("-X", "--request")[-1:]), method)
    return http_request(method, url, headers, body or b"")


def _curl_body(command: _Command, headers: dict[str, str]) -> bytes | None:
    """Return the body or None, and add curl's default headers to ``headers``."""
    parts: list[bytes] = []
    joint = b"&"
    for option, value in command.options:
        if option in {"-T", "--upload-file"}:
            return command.read(value)
        if option in {"-d", "--data", "--data-ascii", "--data-binary", "--json"}:
            data = command.read(value[1:]) if value.startswith("@") else value.encode()
            if value.startswith("@") and option in {"-d", "--data", "--data-ascii"}:
                data = data.replace(b"\r", b"").replace(b"\n", b"")
            parts.append(data)
        elif option == "--data-raw":
            parts.append(value.encode())
        elif option == "--data-urlencode":
            name, separator, content = value.partition("=")
            encoded = quote(content if separator else name, safe="")
            parts.append(f"{name}={encoded}".encode() if separator and name else encoded.encode())
        if option == "--json":
            joint = b""
            headers["content-type"] = headers["accept"] = "application/json"
        elif parts:
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
    return joint.join(parts) if parts else None


def _parse_grpcurl(command: _Command) -> ClientRequest:
    if len(command.arguments) != 2:
        raise RequestError("expected grpcurl [options] host:port package.Service/Method")
    authority, method = command.arguments
    method = f"/{method.lstrip('/')}"
    texts = command.values("-d")
    message = json_message(method, texts[-1] if texts else "{}")
    lines = command.values("-H", "-rpc-header")
    return rpc_request(method, message, parse_headers(lines), authority)


def recorded_request(file: Path, number: int) -> tuple[ClientRequest, ModelMetadata]:
    """Return inference ``number`` (from 1) of a recording as the client may have sent it, and
    metadata derived from the inference's tensors. Raises RequestError."""
    try:
        entry = read_entry(file, number)
        exchange = entry.exchange
        if BODY in entry.redacted:
            raise RequestError(f"{file}#{number}: the body was redacted in the recording")
        return ClientRequest(recorded_message(exchange)), recorded_metadata(exchange)
    except RecordingError as error:
        raise RequestError(str(error)) from None
    except GatewayError as error:
        raise RequestError(f"{file}#{number}: {error.public}") from None


def is_rpc_method(text: str) -> bool:
    """Return whether ``text`` names a known gRPC method in the form ``package.Service/Method``."""
    try:
        SCHEMA.method_classes(f"/{text.lstrip('/')}")
    except KeyError:
        return False
    return "/" in text.strip("/")


def json_message(method: str, text: str) -> bytes:
    """Convert ``text``, a request message of ``method`` in JSON, to protobuf. Raises
    RequestError."""
    try:
        message: Any = SCHEMA.method_classes(method)[0]()
    except KeyError:
        raise RequestError(f"infergate does not know the gRPC method {method}") from None
    try:
        json_format.ParseDict(json.loads(text), message)
    except (TypeError, ValueError, RecursionError, json_format.ParseError) as error:
        raise RequestError(f"the message of {method} is invalid: {error}") from None
    data: bytes = message.SerializeToString()
    return data
