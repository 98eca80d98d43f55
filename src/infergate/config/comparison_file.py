"""Loads comparison rules from a file that has the keys of ``mirror.compare`` in routes.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from infergate.comparison.rules import ComparisonRules
from infergate.config import source
from infergate.config.compile import comparison_rules
from infergate.config.load import validate
from infergate.config.mistakes import ConfigError, KeyPath, Mistake, format_path

_PATH: Final[KeyPath] = ("routes", 0, "mirror", "compare")
_MIRROR_KEYS: Final = frozenset({"baseline", "keep"})


def load_comparison(path: Path, environ: Mapping[str, str]) -> ComparisonRules:
    """Return the rules in the file ``path``. Raises ConfigError with all errors."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError.of_file(path, f"cannot be read: {reason}") from None
    document = source.parse(text, str(path), environ)
    data = document.data
    config, findings = validate(_config_with(data))
    for key in _MIRROR_KEYS & data.keys() if isinstance(data, dict) else ():
        findings.append(((*_PATH, key), "applies only to a mirror"))
    mistakes = list(document.mistakes)
    for full_path, message in findings:
        key_path = full_path[len(_PATH) :]
        line = document.line(key_path)
        mistakes.append(Mistake(document.file, line, format_path(key_path), message))
    if config is None or mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line))
    mirror = config.routes[0].mirror
    assert mirror is not None
    assert mirror.compare is not None
    return comparison_rules(mirror.compare)


def _config_with(compare: Any) -> dict[str, Any]:
    """Return a configuration with ``compare`` at ``_PATH``, so that the rules are checked as in
    routes.yaml."""
    backends = {name: {"protocol": "builtin"} for name in ("old", "new")}
    mirror = {"backend": "new", "compare": compare}
    route = {"model": "*", "backend": "old", "mirror": mirror}
    return {"backends": backends, "routes": (route,)}
