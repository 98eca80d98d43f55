"""Sizes, durations, addresses, URLs and patterns: from the config's spelling to a value, and back.

Every ``parse_*`` takes what YAML gave and raises ``ValueError`` with a message for the operator.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from infergate.access.keys import PREFIX as KEY_PREFIX
from infergate.core.retrying import Hedge
from infergate.routing import table
from infergate.transport.base import Address

_SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB)?")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h)")
_PERCENTILE: Final = re.compile(r"p([1-9][0-9]?(?:\.[0-9]{1,2})?)")
_ADDRESS: Final = re.compile(r"(?:\[([^\]/]+)\]|([^/\[\]]+)):([0-9]+)")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_HEADER_GLOB: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z?\[\]-]+")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_MAX_PORT: Final = 65535
_UNIX_URL: Final = re.compile(r"((?:http\+)?unix):(?://)?(.*)")
_LONGEST_UNIX_PATH: Final = 107
"""Bytes of the path of a unix socket (Linux: sun_path)."""
HIDDEN_PATH: Final = "/(hidden)"
"""Stands for the path of an endpoint."""
_MODE: Final = re.compile(r"0?[0-7]{3}")


@dataclass(frozen=True, slots=True)
class Url:
    """An endpoint as the config spells it. ``port`` None: the scheme's own. ``path`` is that of a
    socket file where there is no host. ``weight`` is its share beside others'; ``name`` is what
    logs, metrics and the console call it, if the operator has given it one."""

    scheme: str
    host: str
    port: int | None
    path: str = ""
    weight: int = 1
    name: str = ""

    def described(self, weight: int, name: str) -> Url:
        """The same with another weight and name."""
        return replace(self, weight=weight, name=name)

    @property
    def shown(self) -> str:
        """Its name, else the URL without its path, which may hold a token."""
        if self.name:
            return self.name
        return str(replace(self, path=HIDDEN_PATH)) if self.host and self.path else str(self)

    def __str__(self) -> str:
        if not self.host:
            return f"{self.scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def shown_urls(urls: Iterable[Url]) -> list[str]:
    """What each of a backend's ``urls`` is called, no two alike."""
    found: dict[str, None] = {}
    for url in urls:
        shown, number = url.shown, 1
        while shown in found:
            number += 1
            shown = f"{url.shown} {number}"
        found[shown] = None
    return list(found)


def told(value: Any) -> str:
    """``value`` in a message: ``got …``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case tuple() | list():
            return "a list"
        case str() if value.startswith(KEY_PREFIX):
            return "a key, which is not repeated here"
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def parse_text(value: Any) -> str:
    """Text; a whole number is taken as its digits (a version)."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    quotes = "; write it in quotes" if isinstance(value, bool | float) else ""
    raise ValueError(f"expected text, got {told(value)}{quotes}")


def parse_pattern(value: Any) -> str:
    """A model's name, a glob or ``/a regular expression/``."""
    pattern = parse_text(value)
    if not pattern:
        raise ValueError("must not be empty")
    if pattern.startswith("/") and not table.is_regex(pattern):
        raise ValueError(f"'{pattern}' begins like a regular expression but has no '/' at its end")
    if table.is_regex(pattern):
        try:
            table.compiled(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
    return pattern


def parse_header_glob(value: Any) -> str:
    """A header's name or a glob of names, in lower case."""
    name = parse_text(value).lower()
    if not _HEADER_GLOB.fullmatch(name):
        raise ValueError(f"'{name}' is not a header name or a glob of header names")
    return name


def parse_header_name(value: Any) -> str:
    """A header's name, in lower case."""
    name = parse_text(value).lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a header name")
    return name


def parse_host_name(value: Any) -> str:
    """A host's name, in lower case."""
    name = parse_text(value).lower().rstrip(".")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a host name")
    return name


def parse_size(value: Any) -> int:
    """Bytes: ``64MiB``, ``64KiB``, ``100B`` or a whole number of bytes."""
    if type(value) is int and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a size like 100B, 64KiB or 64MiB, got {told(value)}")
    return int(match[1]) * _SIZE_UNITS[match[2] or "B"]


def size_text(size: int) -> str:
    """The shortest exact spelling of ``size`` bytes."""
    for unit, scale in reversed(_SIZE_UNITS.items()):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return "0B"


def parse_duration(value: Any) -> float:
    """Seconds: ``250ms``, ``30s``, ``5m``, ``1h``. Only 0 needs no unit."""
    if type(value) is int and value == 0:
        return 0.0
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a duration like 250ms, 30s or 5m, got {told(value)}")
    return float(match[1]) * _TIME_UNITS[match[2]]


def duration_text(seconds: float) -> str:
    """The shortest exact spelling of a duration."""
    for unit, scale in reversed(_TIME_UNITS.items()):
        if unit != "ms" and seconds and seconds % scale == 0:
            return f"{seconds / scale:.0f}{unit}"
    return f"{seconds * 1000:.12g}ms" if seconds else "0s"


def parse_hedge(value: Any) -> Hedge:
    """When to hedge: after a duration, or after a percentile like ``p95`` of the last answers."""
    if isinstance(value, str) and (match := _PERCENTILE.fullmatch(value)):
        return Hedge(percentile=float(match[1]) / 100)
    try:
        after = parse_duration(value)
    except ValueError:
        raise ValueError(
            f"expected a duration like 50ms or a percentile like p95, got {told(value)}"
        ) from None
    if not after:
        raise ValueError("after no time at all every request would be sent twice")
    return Hedge(after)


def hedge_text(hedge: Hedge) -> str:
    """``hedge`` as the config spells it."""
    if hedge.after is not None:
        return duration_text(hedge.after)
    return f"p{hedge.percentile * 100:.4g}"


def parse_address(value: Any) -> Address:
    """``host:port``, ``[ipv6]:port``; port 0 takes a free one."""
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"expected an address like 127.0.0.1:8000, 0.0.0.0:8000 (every interface) or "
            f"[::1]:8000, got {told(value)}"
        )
    host = _host(match[1], match[2])
    return Address(host, _port(match[3]))


def parse_socket(value: Any) -> Address:
    """``host:port``, the same with ``tcp://`` before it, or ``unix:/path``."""
    if isinstance(value, str) and value.startswith("unix:"):
        return Address(unix=_unix_path(value.removeprefix("unix:").removeprefix("//")))
    return parse_address(value.removeprefix("tcp://") if isinstance(value, str) else value)


def _unix_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"'unix:{path}': a socket's path is absolute, like unix:/run/gp.sock")
    if "\0" in path or len(path.encode("utf-8", "surrogateescape")) > _LONGEST_UNIX_PATH:
        raise ValueError(
            f"'unix:{path}': the path of a socket has at most {_LONGEST_UNIX_PATH} bytes"
        )
    return path


def parse_mode(value: Any) -> int:
    """The permissions of a file, in octal and in quotes: ``"660"``."""
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        raise ValueError(f'expected permissions in quotes like "660", got {told(value)}')
    return int(value, 8)


def mode_text(mode: int) -> str:
    """``mode`` as the config spells it."""
    return f"{mode:03o}"


def parse_url(value: Any) -> Url:
    """``scheme://host[:port][/path]``, ``unix:/path`` or ``http+unix:/path``; which schemes fit is
    the protocol's matter."""
    if isinstance(value, str) and (unix := _UNIX_URL.fullmatch(value)):
        return Url(unix[1], "", None, _unix_path(unix[2]))
    if not isinstance(value, str) or "://" not in value:
        raise ValueError(
            f"expected a URL like http://10.0.0.7:8000 or grpc://triton:8001, got {told(value)}"
        )
    try:
        parts = urlsplit(value)
    except ValueError:  # brackets that do not pair
        raise ValueError("a URL whose brackets do not pair") from None  # untold, as below
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("a URL here has no user, query or fragment")  # untold: it may be secret
    rest = parts.netloc
    host, colon, port = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
    if not colon:
        host = rest
    bracketed = host[1:-1] if host.startswith("[") and host.endswith("]") else None
    return Url(
        parts.scheme,
        _host(bracketed, host),
        _port(port) if colon else None,
        parts.path.rstrip("/"),
    )


def _host(ipv6: str | None, name: str) -> str:
    """A checked host: an IPv6 address that stood in brackets, or an IPv4 address or name."""
    try:
        if ipv6 is not None:
            return str(ipaddress.IPv6Address(ipv6))
        if name.replace(".", "").isdecimal():
            return str(ipaddress.IPv4Address(name))
    except ValueError:
        raise ValueError(f"'{ipv6 or name}' is not an IP address") from None
    if not name:
        raise ValueError("the host is missing")
    if ":" in name:
        raise ValueError(f"'{name}': an IPv6 address stands in brackets, like [::1]:8000")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a host name")
    return name


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > _MAX_PORT:
        raise ValueError(f"'{text}' is not a port: ports go from 0 to {_MAX_PORT}")
    return int(text)
