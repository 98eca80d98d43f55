"""Loads a file with comparison rules, which has the keys of ``mirror.compare`` in routes.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from infergate.comparison.rules import ComparisonRules
from infergate.config import source
from infergate.config.check import check
from infergate.config.compile import comparison_rules
from infergate.config.explain import explain
from infergate.config.mistakes import ConfigError, Finding, KeyPath, Mistake, format_path
from infergate.config.outline import outline_config, outline_readable
from infergate.config.schema import Config

_PATH: Final[KeyPath] = ("routes", 0, "mirror", "compare")
_MIRROR_KEYS: Final = frozenset({"baseline", "keep"})


def load_comparison(path: Path, environ: Mapping[str, str]) -> ComparisonRules:
    """Return the rules in the file ``path``. Raises ConfigError with all errors."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Mistake(str(path), 0, "", f"cannot be read: {reason}")]) from None
    document = source.parse(text, str(path), environ)
    data = document.data
    findings: list[Finding] = []
    config: Config | None = None
    try:
        config = Config.model_validate(_around(data))
        outline = outline_config(config)
    except ValidationError as error:
        findings += explain(error.errors(include_url=False))
        outline = outline_readable(_around(data))
    findings += check(outline)
    for key in _MIRROR_KEYS & data.keys() if isinstance(data, dict) else ():
        findings.append(((*_PATH, key), "applies only to a mirror"))
    mistakes = list(document.mistakes)
    for full_path, message in findings:
        key_path = full_path[len(_PATH) :]
        line = document.line(key_path)
        mistakes.append(Mistake(str(path), line, format_path(key_path), message))
    if config is None or mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line))
    mirror = config.routes[0].mirror
    assert mirror is not None
    assert mirror.compare is not None
    return comparison_rules(mirror.compare)


def _around(compare: Any) -> dict[str, Any]:
    """Return a configuration with ``compare`` at ``_PATH``, so that the rules are checked as in
    routes.yaml."""
    backends = {name: {"protocol": "builtin"} for name in ("old", "new")}
    mirror = {"backend": "new", "compare": compare}
    route = {"model": "*", "backend": "old", "mirror": mirror}
    return {"backends": backends, "routes": (route,)}
