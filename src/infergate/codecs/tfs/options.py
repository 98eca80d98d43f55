"""The options of TensorFlow Serving's codecs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infergate.codecs.option_checks import check_option_names, read_choice

CONTENTS: Final = ("auto", "raw", "typed")
VERSION_ZERO: Final = ("default", "literal")
REST_OPTIONS: Final = ("version_zero", "labels", "signatures")
GRPC_OPTIONS: Final = ("contents", *REST_OPTIONS)


@dataclass(frozen=True, slots=True)
class TfsOptions:
    """The options of a codec.

    - ``contents``: the form of numbers in responses. With ``raw``, the numbers are in
      tensor_content; with ``typed``, they are in the field of their type. ``auto`` selects
      ``typed``, or ``raw`` if writing typed numbers would be slow (``tensor_writer``).
    - ``version_zero``: with ``default``, a requested version 0 selects the default version; with
      ``literal``, it selects version 0.
    - ``labels``: for each model, a mapping from labels to versions.
    - ``signatures``: for each model, a mapping from signatures to the models that serve them.
    """

    contents: str = "auto"
    version_zero: str = "default"
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    signatures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_options(names: Sequence[str], options: Mapping[str, Any]) -> TfsOptions:
    """Return the validated ``options``, which may have only the keys ``names``. Raises
    ValueError."""
    check_option_names(options, names)
    return TfsOptions(
        read_choice(options, "contents", CONTENTS),
        read_choice(options, "version_zero", VERSION_ZERO),
        options.get("labels", {}),
        options.get("signatures", {}),
    )
