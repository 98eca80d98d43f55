"""The options of TensorFlow Serving's frontends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CONTENTS: Final = ("auto", "raw", "typed")
VERSION_ZERO: Final = ("default", "literal")
_OPTION_NAMES: Final = ("contents", "version_zero", "labels", "signatures")


@dataclass(frozen=True, slots=True)
class TfsOptions:
    """The options.

    - ``contents``: the form of tensors in responses: ``raw`` in tensor_content, ``typed`` in the
      field of their type, ``auto`` typed unless that is slow (``tensor_writer``).
    - ``version_zero``: a requested version 0 means the ``default`` version, or is ``literal``.
    - ``labels``: for each model, the versions by their labels.
    - ``signatures``: for each model, the models that serve its signatures, by signature.
    """

    contents: str = "auto"
    version_zero: str = "default"
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    signatures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_options(options: Mapping[str, Any]) -> TfsOptions:
    """Check and return the options. Raises ValueError."""
    for name in options:
        if name not in _OPTION_NAMES:
            raise ValueError(
                f"{name!r} is not an option; the options are {', '.join(_OPTION_NAMES)}"
            )
    contents = options.get("contents", "auto")
    if contents not in CONTENTS:
        raise ValueError(f"contents is {contents!r}, expected one of {list(CONTENTS)}")
    version_zero = options.get("version_zero", "default")
    if version_zero not in VERSION_ZERO:
        raise ValueError(f"version_zero is {version_zero!r}, expected one of {list(VERSION_ZERO)}")
    return TfsOptions(
        contents, version_zero, options.get("labels", {}), options.get("signatures", {})
    )
