"""The base class of all sections of routes.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping in routes.yaml. It is immutable, has strict types, and does not accept unknown
    keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def all_sections(base: type[Section] = Section) -> Iterator[type[Section]]:
    """Yield all direct and indirect subclasses of ``base`` that have no subclasses."""
    for section in base.__subclasses__():
        if section.__subclasses__():
            yield from all_sections(section)
        else:
            yield section
