"""A configuration as it may be shown: what its file says, without secrets; and how two differ.

*Rule.* Hidden are hashes of keys, passwords in URLs, paths of endpoints, and what a route compares
with headers that carry credentials. Variables of the environment are shown as what they stood for,
but for those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from infergate.config.schema import Config
from infergate.config.section import Section

HIDDEN: Final = "(hidden)"
HIDDEN_CHANGE: Final = "What is hidden has changed."
_HASHES: Final = frozenset({"sha256"})
_HEADERS: Final = "headers"
_CREDENTIAL: Final = re.compile(r"auth|cookie|key|token|secret|password|session", re.IGNORECASE)
_USER: Final = re.compile(r"://[^/?#]*@")
"""As far as the last @ before a path: a password may hold one."""
_PATH: Final = re.compile(r"(?<=://)([^/]+)/.*")
_CONTEXT: Final = 3
_Path = tuple[str | int, ...]
_dumper: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def shown(config: Config, *, defaults: bool = False) -> str:
    """``config`` as YAML. ``defaults``: also what its file does not say."""
    return _yaml(_hidden(_dump(config, defaults=defaults)))


def difference(loaded: Config, file: Config) -> str:
    """How ``file`` differs from what is ``loaded``, as a unified diff; empty: not at all. What is
    hidden and has changed is told to have."""
    before, after = _dump(loaded), _dump(file)
    old = dict(_secrets(before, ()))
    changed = {path for path, text in _secrets(after, ()) if old.get(path, text) != text}
    lines = difflib.unified_diff(
        _yaml(_hidden(before)).splitlines(),
        _yaml(_hidden(after, changed)).splitlines(),
        "loaded",
        "file",
        lineterm="",
        n=_CONTEXT,
    )
    told = "\n".join(lines)
    return HIDDEN_CHANGE if not told and loaded != file else told


def _dump(config: Config, *, defaults: bool = False) -> Any:
    """By entries: pydantic lets no other thread work before it is done with what it is given."""

    def dump(section: Section) -> Any:
        return section.model_dump(mode="json", by_alias=True, exclude_unset=not defaults)

    told: dict[str, Any] = {}
    for name in type(config).model_fields:
        if not defaults and name not in config.model_fields_set:
            continue
        match getattr(config, name):
            case Section() as section:
                told[name] = dump(section)
            case tuple() as sections:
                told[name] = [dump(each) for each in sections]
            case dict() as sections:
                told[name] = {key: dump(each) for key, each in sections.items()}
            case plain:
                told[name] = plain
    return told


def _yaml(data: Any) -> str:
    text: str = yaml.dump(data, Dumper=_dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _secrets(data: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    """Every text that is not shown as it is."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _secrets(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _secrets(value, (*path, index))
    elif isinstance(data, str) and _masked(data, path) != data:
        yield path, data


def _masked(text: str, path: _Path) -> str:
    match path:
        case (*_, str(key)) if key in _HASHES:
            return HIDDEN
        case (*_, str(section), str(key)) if section == _HEADERS and _CREDENTIAL.search(key):
            return HIDDEN
        case ("backends", _, "endpoints", int(), *key) if key != ["name"]:
            return _PATH.sub(rf"\1/{HIDDEN}", text)
    return _USER.sub(f"://{HIDDEN}@", text)


def _hidden(data: Any, changed: set[_Path] | frozenset[_Path] = frozenset()) -> Any:
    """``data`` without secrets; those at ``changed`` say that they are others."""

    def copy(value: Any, path: _Path) -> Any:
        if isinstance(value, dict):
            return {key: copy(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [copy(each, (*path, index)) for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        masked = _masked(value, path)
        return masked.replace(HIDDEN, "(hidden, another one)") if path in changed else masked

    return copy(data, ())
