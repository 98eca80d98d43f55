"""What every mapping of routes.yaml is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the file: strict, no unknown key, not to be changed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
