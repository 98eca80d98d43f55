"""Formats a configuration, or the difference between two configurations, without secrets.

The output hides users and passwords in URLs, the paths in the URLs of endpoints and of the payload
log, the hashes of keys, the values of credential headers in routes, and plug-in options whose names
suggest credentials. Other values from environment variables are not hidden."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from infergate.config.schema import Config
from infergate.config.section import Section
from infergate.core.credential_names import may_hold_credentials

HIDDEN: Final = "(hidden)"
HIDDEN_CHANGE: Final = "Hidden values have changed."
_OPTIONS: Final = "options"
_USER: Final = re.compile(r"://[^/?#]*@")
"""Matches the user and the password of a URL, up to the last @ before the path, because a password
may contain @."""
_PATH: Final = re.compile(r"(?<=://)([^/]+)/.*")
_Path = tuple[str | int, ...]
_dumper: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def redacted_yaml(config: Config, *, defaults: bool = False) -> str:
    """Return ``config`` as YAML without secrets. With ``defaults``, include keys that the file does
    not set."""
    return _to_yaml(_redact(_dump(config, defaults=defaults)))


def redacted_diff(loaded: Config, file: Config, names: tuple[str, str] = ("loaded", "file")) -> str:
    """Return a unified diff from ``loaded`` to ``file``, without secrets, or an empty string if
    both are equal. If they differ only in values that the diff cannot show, return
    ``HIDDEN_CHANGE``. The header of the diff contains ``names``. Hidden values that differ are
    marked."""
    before, after = _dump(loaded), _dump(file)
    old = dict(_secrets(before, ()))
    changed = {path for path, value in _secrets(after, ()) if old.get(path, value) != value}
    lines = difflib.unified_diff(
        _to_yaml(_redact(before)).splitlines(),
        _to_yaml(_redact(after, changed)).splitlines(),
        *names,
        lineterm="",
    )
    diff = "\n".join(lines)
    return HIDDEN_CHANGE if not diff and loaded != file else diff


def _dump(config: Config, *, defaults: bool = False) -> Any:
    # Each call converts one entry, because pydantic blocks all other threads until a call returns.

    def dump(section: Section) -> Any:
        return section.model_dump(mode="json", by_alias=True, exclude_unset=not defaults)

    data: dict[str, Any] = {}
    for name in type(config).model_fields:
        if not defaults and name not in config.model_fields_set:
            continue
        match getattr(config, name):
            case Section() as section:
                data[name] = dump(section)
            case tuple() as sections:
                data[name] = [dump(entry) for entry in sections]
            case dict() as sections:
                data[name] = {key: dump(entry) for key, entry in sections.items()}
            case plain:
                data[name] = plain
    return data


def _to_yaml(data: Any) -> str:
    text: str = yaml.dump(data, Dumper=_dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _secrets(data: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    masked = _redact_node(data, path)
    if isinstance(masked, dict):
        for key, value in masked.items():
            yield from _secrets(value, (*path, key))
    elif isinstance(masked, list):
        for index, value in enumerate(masked):
            yield from _secrets(value, (*path, index))
    elif masked != data:
        yield path, data


def _redact_node(value: Any, path: _Path) -> Any:
    """Return ``value`` or the text that is shown instead. A mapping or list under a name that
    suggests credentials is hidden as a whole, because the keys of a mapping may be secrets."""
    if value is None or isinstance(value, bool):
        return value
    if any(may_hold_credentials(str(key)) for key in _option_keys(path)):
        return HIDDEN
    if not isinstance(value, str):
        return value
    match path:
        case (*_, "sha256"):
            return HIDDEN
        case (*_, "headers", str(key)) if may_hold_credentials(key):
            return HIDDEN
        case ("backends", _, "endpoints", int(), *key) if key != ["name"]:
            return _PATH.sub(rf"\1/{HIDDEN}", value)
        case ("payload_log", "http", "url"):
            return _PATH.sub(rf"\1/{HIDDEN}", value)
    return _USER.sub(f"://{HIDDEN}@", value)


def _option_keys(path: _Path) -> _Path:
    """Return the part of ``path`` within the options of a plug-in."""
    match path:
        case (("backends" | "hooks"), _, "options", *keys) | ("listeners", "codecs", _, *keys):
            return tuple(keys)
        case ("routes", _, "transforms", *keys) if _OPTIONS in keys:
            return tuple(keys[keys.index(_OPTIONS) + 1 :])
    return ()


def _redact(data: Any, changed: set[_Path] | frozenset[_Path] = frozenset()) -> Any:
    """Return a copy of ``data`` without secrets. Secrets at the paths in ``changed`` are marked."""

    def copy(value: Any, path: _Path) -> Any:
        masked = _redact_node(value, path)
        if isinstance(masked, dict):
            return {key: copy(item, (*path, key)) for key, item in masked.items()}
        if isinstance(masked, list):
            return [copy(item, (*path, index)) for index, item in enumerate(masked)]
        return masked.replace(HIDDEN, "(hidden, changed)") if path in changed else masked

    return copy(data, ())
