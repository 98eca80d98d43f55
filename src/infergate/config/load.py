"""Loads routes.yaml into a Config, or raises an error that lists all mistakes in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from infergate.config import source
from infergate.config.check import check
from infergate.config.explain import explain
from infergate.config.fields import FILES, FOLDER
from infergate.config.mistakes import ConfigError, Finding, Mistake, format_path
from infergate.config.outline import outline
from infergate.config.renamed_keys import accept_old_names
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.config.warnings import warning_findings

_MAPPING: Final = "configuration"
"""The name that error messages use for a configuration that does not come from a file."""


def load(
    path: Path,
    environ: Mapping[str, str],
    files: TrackedFiles | None = None,
    *,
    needs_listener: bool = True,
) -> Config:
    """Return the configuration in the file ``path``.

    ``files`` records the configuration file and the label files. ``needs_listener`` requires an
    enabled listener. Raises ConfigError with all errors."""
    files = files or TrackedFiles()
    try:
        text = files.read(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError.of_file(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError.of_file(path, "not UTF-8 text", line) from None
    return parse(text, str(path), environ, files, needs_listener=needs_listener)


def parse(
    text: str,
    file: str,
    environ: Mapping[str, str],
    files: TrackedFiles | None = None,
    *,
    needs_listener: bool = True,
) -> Config:
    """Return the configuration in ``text``, with its warnings.

    ``file`` is the configuration's name in error messages, and its folder is the base of relative
    paths. ``files`` records the label files that the configuration names. Raises ConfigError with
    all errors."""
    document = source.parse(text, file, environ)
    folder = Path(file).parent
    return _config(document, folder, files or TrackedFiles(), needs_listener=needs_listener)


def from_mapping(data: Mapping[str, Any], folder: Path, *, needs_listener: bool = True) -> Config:
    """Return the configuration in ``data``, which has the keys of routes.yaml, with its warnings.

    Values are taken literally: environment variables are not substituted. ``folder`` is the base
    of relative paths. ``needs_listener`` requires an enabled listener. Raises ConfigError with all
    errors."""
    document = source.from_data(data, _MAPPING)
    return _config(document, folder, TrackedFiles(), needs_listener=needs_listener)


def check_config(config: Config, *, needs_listener: bool = True) -> None:
    """Check ``config`` for conflicts between its entries, which pydantic cannot detect. Raises
    ConfigError with all errors."""
    findings = _check(config, needs_listener=needs_listener)
    mistakes = [Mistake(_MAPPING, 0, format_path(path), text) for path, text in findings]
    if mistakes:
        raise ConfigError(mistakes)


def _check(data: Any, *, needs_listener: bool) -> list[Finding]:
    entries = outline(data)
    return list(check(entries if needs_listener else replace(entries, has_frontend=True)))


def validate(
    data: Any, context: dict[str, Any] | None = None, *, needs_listener: bool = True
) -> tuple[Config | None, list[Finding]]:
    """Return ``data`` as a Config, or None if pydantic rejects it, and all errors in ``data``,
    including conflicts between valid entries. ``context`` has the keys ``fields.FOLDER`` and
    ``fields.FILES``."""
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        invalid = explain(error.errors(include_url=False))
        return None, [*invalid, *_check(data, needs_listener=needs_listener)]
    return config, _check(config, needs_listener=needs_listener)


def _config(
    document: source.YamlSource, folder: Path, files: TrackedFiles, *, needs_listener: bool
) -> Config:
    accept_old_names(document)
    file = document.file
    config, findings = validate(
        document.data, {FOLDER: folder, FILES: files}, needs_listener=needs_listener
    )

    def located(items: Iterable[Finding]) -> list[Mistake]:
        mistakes = [
            Mistake(file, document.line(path), format_path(path), message)
            for path, message in items
            if not document.has_error(path)
        ]
        return sorted(mistakes, key=lambda mistake: mistake.line)

    mistakes = document.mistakes + located(findings)
    if config is None or mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line))
    config.add_warnings(located(warning_findings(config)))
    return config
