"""Loads routes.yaml into a Config, or raises an error that lists all mistakes in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from infergate.config import source
from infergate.config.check import check
from infergate.config.explain import explain
from infergate.config.fields import FILES, FOLDER
from infergate.config.mistakes import ConfigError, Finding, Mistake, format_path
from infergate.config.outline import outline_config, outline_readable
from infergate.config.renamed_keys import accept_old_names
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.config.warnings import warning_findings


def load(path: Path, environ: Mapping[str, str], files: TrackedFiles | None = None) -> Config:
    """Return the configuration in the file ``path``.

    ``files`` records every file that is read. Raises ConfigError with all errors.
    """
    files = files or TrackedFiles()
    try:
        text = files.read(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            [Mistake(str(path), 0, "", f"cannot be read: {error.strerror}")]
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Mistake(str(path), line, "", "not UTF-8 text")]) from None
    return parse(text, str(path), environ, files)


def parse(
    text: str, file: str, environ: Mapping[str, str], files: TrackedFiles | None = None
) -> Config:
    """Return the configuration in ``text``, with its warnings.

    ``file`` is the configuration's name in error messages and the base of relative paths. ``files``
    records the files that the configuration refers to. Raises ConfigError with all errors."""
    document = source.parse(text, file, environ)
    accept_old_names(document)
    findings: list[Finding] = []
    config: Config | None = None
    context = {FOLDER: Path(file).parent, FILES: files or TrackedFiles()}
    try:
        config = Config.model_validate(document.data, context=context)
        outline = outline_config(config)
    except ValidationError as error:
        findings += explain(error.errors(include_url=False))
        outline = outline_readable(document.data)
    findings += check(outline)

    def located(found: Iterable[Finding]) -> list[Mistake]:
        mistakes = [
            Mistake(file, document.line(path), format_path(path), message)
            for path, message in found
            if not document.has_error(path)
        ]
        return sorted(mistakes, key=lambda mistake: mistake.line)

    mistakes = document.mistakes + located(findings)
    if config is None or mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line))
    config.add_warnings(located(warning_findings(config)))
    return config
