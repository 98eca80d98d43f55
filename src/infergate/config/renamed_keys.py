"""Keys of routes.yaml that have new names. The old names are accepted, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from infergate.config.mistakes import KeyPath, Mistake, format_path
from infergate.config.source import YamlSource
from infergate.core.log_events import CONFIG_KEY_DEPRECATED

_ANY: Final = "*"
_NEW_NAMES: Final[Mapping[tuple[str, ...], str]] = {
    ("backends", _ANY, "limits", "retry_least"): "min_retries",
    ("access", "redis", "away"): "when_unavailable",
}
_log = logging.getLogger("infergate")


def accept_old_names(source: YamlSource) -> None:
    """Give the keys of ``source`` their new names, and log a warning for each old name. A section
    with both names is an error."""
    for (*enclosing, old_name), new_name in _NEW_NAMES.items():
        for path, section in list(_sections(source.data, tuple(enclosing))):
            if old_name not in section:
                continue
            old_path, new_path = (*path, old_name), (*path, new_name)
            value, line = section.pop(old_name), source.lines[old_path]
            if new_name in section:
                problem = f"'{new_name}' is the new name of this key; use only '{new_name}'"
                source.mistakes.append(Mistake(source.file, line, format_path(old_path), problem))
                continue
            section[new_name], source.lines[new_path] = value, line
            if old_path in source.erroneous:
                source.erroneous.add(new_path)
            _log.warning(
                "%s:%d: %s: the key '%s' is deprecated; use '%s'",
                source.file,
                line,
                format_path(path),
                old_name,
                new_name,
                extra=CONFIG_KEY_DEPRECATED,
            )


def _sections(
    data: Any, pattern: tuple[str, ...], path: KeyPath = ()
) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield the mappings whose paths match ``pattern``, with these paths."""
    if not isinstance(data, dict):
        return
    if not pattern:
        yield path, data
        return
    for key in data if pattern[0] == _ANY else (pattern[0],):
        yield from _sections(data.get(key), pattern[1:], (*path, key))
