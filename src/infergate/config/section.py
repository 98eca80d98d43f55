"""The base class of all mappings in routes.yaml."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping in routes.yaml. It is immutable, has strict types, and does not accept unknown
    keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
