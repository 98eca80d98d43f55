"""A file to a Config, or to all the mistakes in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from infergate.config import source
from infergate.config.check import check
from infergate.config.explain import explain
from infergate.config.fields import FILES, FOLDER
from infergate.config.files import Files
from infergate.config.mistakes import ConfigError, Finding, Mistake, spell
from infergate.config.outline import outline_of, salvage
from infergate.config.schema import Config


def load(path: Path, environ: Mapping[str, str], files: Files | None = None) -> Config:
    """The configuration in the file ``path``. Raises ConfigError with every mistake. ``files`` is
    to know all files that are read."""
    files = files or Files()
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


def parse(text: str, file: str, environ: Mapping[str, str], files: Files | None = None) -> Config:
    """The configuration in ``text``. ``file`` is the name to tell in mistakes; ``files`` are to
    know those that it names."""
    read = source.parse(text, file, environ)
    found: list[Finding] = []
    config: Config | None = None
    context = {FOLDER: Path(file).parent, FILES: files or Files()}
    try:
        config = Config.model_validate(read.data, context=context)
        outline = outline_of(config)
    except ValidationError as error:
        found += explain(error.errors(include_url=False))
        outline = salvage(read.data)
    found += check(outline)
    mistakes = read.mistakes + [
        Mistake(file, read.line(path), spell(path), message)
        for path, message in found
        if not read.is_spoiled(path)
    ]
    if config is None or mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line))
    return config
