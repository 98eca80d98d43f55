"""Parsers and formatters of scalar values: sizes, durations, addresses, URLs and patterns.

Each ``parse_*`` function takes a value that YAML has parsed. It raises ValueError with a message
for the operator."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from infergate.access.keys import KEY_TEXT_PREFIX
from infergate.core.route_policy import HedgePolicy
from infergate.routing import table
from infergate.transport.base import Address

_SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB)?")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h)")
_PERCENTILE: Final = re.compile(r"p([1-9][0-9]?(?:\.[0-9]{1,2})?)")
_ADDRESS: Final = re.compile(r"(?:\[([^\]/]+)\]|([^/\[\]]+)):([0-9]+)")
_AUTHORITY: Final = re.compile(r"(?:\[([^\]]*)\]|(.*?))(?::([^:\]]*))?")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_HEADER_GLOB: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z?\[\]-]+")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_MAX_PORT: Final = 65535
_UNIX_URL: Final = re.compile(r"((?:http\+)?unix):(?://)?(.*)")
_MAY_HOLD_SECRETS: Final = re.compile("[@/?#]")
"""Matches if a URL without a scheme has a user, path, query or fragment."""
_MAX_UNIX_PATH_BYTES: Final = 107
"""Maximum length of a unix socket's path in bytes (``sun_path`` on Linux)."""
HIDDEN_PATH: Final = "/(hidden)"
"""The text that replaces the path of an endpoint's URL in logs, metrics and the console."""
_MODE: Final = re.compile(r"0?[0-7]{3}")


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an endpoint.

    ``port`` is None for the scheme's default port. Without a host, ``path`` is the path of a unix
    socket. ``weight`` is the load balancing weight. ``name``, if set, is the display name in logs,
    metrics and the console."""

    scheme: str
    host: str
    port: int | None
    path: str = ""
    weight: int = 1
    name: str = ""

    @property
    def display_name(self) -> str:
        """``name`` if it is set, or else the URL with its path hidden, because the path may hold a
        token."""
        if self.name:
            return self.name
        return str(replace(self, path=HIDDEN_PATH)) if self.host and self.path else str(self)

    def __str__(self) -> str:
        if not self.host:
            return f"{self.scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def display_names(urls: Iterable[Url]) -> list[str]:
    """Return a unique display name for each of a backend's ``urls``."""
    names: dict[str, None] = {}
    for url in urls:
        shown, number = url.display_name, 1
        while shown in names:
            number += 1
            shown = f"{url.display_name} {number}"
        names[shown] = None
    return list(names)


def describe_value(value: Any) -> str:
    """Describe ``value`` for a message that ends in ``got …``. API keys are omitted."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case tuple() | list():
            return "a list"
        case str() if value.startswith(KEY_TEXT_PREFIX):
            return "a key, which is not repeated here"
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def parse_text(value: Any) -> str:
    """Parse text. A whole number, such as a version, is converted to text."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    quotes = "; write it in quotes" if isinstance(value, bool | float) else ""
    raise ValueError(f"expected text, got {describe_value(value)}{quotes}")


def parse_pattern(value: Any) -> str:
    """Parse a model name, a glob or ``/a regular expression/``."""
    pattern = parse_text(value)
    if not pattern:
        raise ValueError("must not be empty")
    if pattern.startswith("/") and not table.is_regex(pattern):
        raise ValueError(f"'{pattern}' begins like a regular expression but does not end in '/'")
    if table.is_regex(pattern):
        try:
            table.compile_pattern(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
    return pattern


def parse_header_glob(value: Any) -> str:
    """Return a header name, or a glob of header names, in lower case."""
    name = parse_text(value).lower()
    if not _HEADER_GLOB.fullmatch(name):
        raise ValueError(f"'{name}' is not a header name or a glob of header names")
    return name


def parse_header_name(value: Any) -> str:
    """Return a header name in lower case."""
    name = parse_text(value).lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a header name")
    return name


def parse_host_name(value: Any) -> str:
    """Return a host name in lower case, without a trailing dot."""
    name = parse_text(value).lower().rstrip(".")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a host name")
    return name


def parse_size(value: Any) -> int:
    """Parse a size in bytes: ``64MiB``, ``64KiB``, ``100B`` or a whole number."""
    if type(value) is int and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a size like 100B, 64KiB or 64MiB, got {describe_value(value)}")
    return int(match[1]) * _SIZE_UNITS[match[2] or "B"]


def size_text(size: int) -> str:
    """Return the shortest exact text of ``size`` bytes."""
    for unit, scale in reversed(_SIZE_UNITS.items()):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return "0B"


def parse_duration(value: Any) -> float:
    """Parse a duration in seconds: ``250ms``, ``30s``, ``5m``, ``1h``. Only 0 needs no unit."""
    if type(value) is int and value == 0:
        return 0.0
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a duration like 250ms, 30s or 5m, got {describe_value(value)}")
    return float(match[1]) * _TIME_UNITS[match[2]]


def duration_text(seconds: float) -> str:
    """Return the shortest exact text of a duration."""
    for unit, scale in reversed(_TIME_UNITS.items()):
        if unit != "ms" and seconds and seconds % scale == 0:
            return f"{seconds / scale:.0f}{unit}"
    return f"{seconds * 1000:.12g}ms" if seconds else "0s"


def parse_hedge(value: Any) -> HedgePolicy:
    """Parse the delay of a hedge: a duration, or a percentile of response times (``p95``)."""
    if isinstance(value, str) and (match := _PERCENTILE.fullmatch(value)):
        return HedgePolicy(percentile=float(match[1]) / 100)
    try:
        after = parse_duration(value)
    except ValueError:
        raise ValueError(
            f"expected a duration like 50ms or a percentile like p95, got {describe_value(value)}"
        ) from None
    if not after:
        raise ValueError("must be more than 0; with 0, every request would be sent twice")
    return HedgePolicy(after)


def hedge_text(hedge: HedgePolicy) -> str:
    """Return ``hedge`` in the form that ``parse_hedge`` reads."""
    if hedge.after_seconds is not None:
        return duration_text(hedge.after_seconds)
    return f"p{hedge.percentile * 100:.4g}"


def parse_address(value: Any) -> Address:
    """Parse ``host:port`` or ``[ipv6]:port``. Port 0 selects a free port."""
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"expected an address like 127.0.0.1:8000, 0.0.0.0:8000 (every interface) or "
            f"[::1]:8000, got {describe_value(value)}"
        )
    return Address(_host(match[1], match[2]), _port(match[3]))


def parse_socket(value: Any) -> Address:
    """Parse ``host:port``, ``tcp://host:port`` or ``unix:/path``."""
    if isinstance(value, str) and value.startswith("unix:"):
        return Address(unix=_unix_path(value.removeprefix("unix:").removeprefix("//")))
    return parse_address(value.removeprefix("tcp://") if isinstance(value, str) else value)


def _unix_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(
            f"'unix:{path}': the path of a socket must be absolute, like unix:/run/gp.sock"
        )
    if "\0" in path or len(path.encode("utf-8", "surrogateescape")) > _MAX_UNIX_PATH_BYTES:
        raise ValueError(
            f"'unix:{path}': the path of a socket may have at most {_MAX_UNIX_PATH_BYTES} bytes "
            "and no NUL"
        )
    return path


def parse_mode(value: Any) -> int:
    """Parse file permissions, which are octal and in quotes: ``"660"``."""
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        raise ValueError(f'expected permissions in quotes like "660", got {describe_value(value)}')
    return int(value, 8)


def mode_text(mode: int) -> str:
    """Return ``mode`` in the form that ``parse_mode`` reads."""
    return f"{mode:03o}"


def parse_url(value: Any) -> Url:
    """Parse ``scheme://host[:port][/path]``, ``unix:/path`` or ``http+unix:/path``.

    Any scheme is accepted; ``check`` compares the scheme with the backend's protocol. Error
    messages do not contain a URL that may hold secrets."""
    if isinstance(value, str) and (unix := _UNIX_URL.fullmatch(value)):
        return Url(unix[1], "", None, _unix_path(unix[2]))
    if not isinstance(value, str) or "://" not in value:
        got = describe_value(value)
        if isinstance(value, str) and _MAY_HOLD_SECRETS.search(value):
            got = "text that is not repeated here, because it may contain secrets"
        raise ValueError(
            f"expected a URL like http://10.0.0.7:8000 or grpc://triton:8001, got {got}"
        )
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError("the host of the URL is invalid, or its brackets are unbalanced") from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("a URL must not have a user, query or fragment here")
    match = _AUTHORITY.fullmatch(parts.netloc)
    assert match is not None  # it matches any text
    try:
        host, port = _host(match[1], match[2]), None if match[3] is None else _port(match[3])
    except ValueError:
        if "@" in parts.path:  # the password of a user may contain a slash
            raise ValueError("the host or port of the URL is invalid; no user is allowed") from None
        raise
    return Url(parts.scheme, host, port, parts.path.rstrip("/"))


def _host(bracketed: str | None, name: str) -> str:
    """Return a valid host: the IPv6 address ``bracketed``, or the IPv4 address or name ``name``."""
    try:
        if bracketed is not None:
            return str(ipaddress.IPv6Address(bracketed))
        if name.replace(".", "").isdecimal():
            return str(ipaddress.IPv4Address(name))
    except ValueError:
        raise ValueError(f"'{bracketed or name}' is not an IP address") from None
    if not name:
        raise ValueError("the host is missing")
    if ":" in name:
        raise ValueError(f"'{name}': an IPv6 address must be in brackets, like [::1]:8000")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a host name")
    return name


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > _MAX_PORT:
        raise ValueError(f"'{text}' is not a port: expected 0 to {_MAX_PORT}")
    return int(text)
