"""The types of values in routes.yaml, each with its parser, serializer and JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import GroupedMetadata
from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)

from infergate.codecs.profiles import PROFILES
from infergate.codecs.registry import broken_plugins
from infergate.config import protocols
from infergate.config.labels import parse_labels
from infergate.config.mistakes import suggestion
from infergate.config.tracked_files import TrackedFiles
from infergate.config.values import (
    describe_value,
    duration_text,
    hedge_text,
    mode_text,
    parse_address,
    parse_duration,
    parse_header_glob,
    parse_header_name,
    parse_hedge,
    parse_host_name,
    parse_mode,
    parse_pattern,
    parse_size,
    parse_socket,
    parse_text,
    size_text,
)
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.priorities import HIGHEST_PRIORITY, LOWEST_PRIORITY
from infergate.core.route_policy import HedgePolicy
from infergate.transport.base import Address

FOLDER: Final = "folder"
"""The validation context's key for the folder that relative paths refer to."""
FILES: Final = "files"
"""The validation context's key for the :class:`TrackedFiles` that records the files read."""


def _read_labels(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Parse labels. Files are relative to the folder in the validation context."""
    context = info.context or {}
    folder: Path = context.get(FOLDER, Path())
    files: TrackedFiles = context.get(FILES) or TrackedFiles()
    return parse_labels(value, lambda path: files.read(folder / path))


def _read_path(value: Any, info: ValidationInfo) -> Path:
    """Parse the path of a file, relative to the folder in the validation context."""
    folder: Path = (info.context or {}).get(FOLDER, Path())
    text = parse_text(value)
    if not text or "\0" in text:
        raise ValueError("expected the path of a file")
    return folder / text


def _parse_datatype(value: Any) -> Datatype:
    if not isinstance(value, str) or value not in DATATYPES_BY_NAME:
        raise ValueError(
            f"{describe_value(value)} is not a datatype{suggestion(str(value), DATATYPES_BY_NAME)}"
        )
    return DATATYPES_BY_NAME[value]


def _parse_profile(value: Any) -> str:
    profiles = ("auto", *PROFILES)
    if value not in profiles:
        raise ValueError(
            f"{describe_value(value)} is not a profile{suggestion(str(value), profiles)}"
        )
    return str(value)


def _parse_protocol(value: Any) -> str:
    name, transport_kinds = parse_text(value), protocols.transport_kinds()
    if name in transport_kinds:
        return name
    if name in broken_plugins():
        raise ValueError(f"the codec of '{name}' cannot be used: {broken_plugins()[name]}")
    raise ValueError(f"'{name}' is not a protocol{suggestion(name, transport_kinds)}")


def _accept_null(value: Any) -> Any:
    """Accept an unquoted ``null``, which YAML reads as None."""
    return "null" if value is None else value


class YamlValue(GroupedMetadata):
    """The parser, the serializer and the JSON schema of a value in routes.yaml.

    ``parse`` raises ValueError with a message for the operator. ``write`` returns a text that
    ``parse`` accepts; by default, the value is written unchanged. ``format`` and ``schema`` go
    into the JSON schema."""

    def __init__(
        self,
        parse: Callable[..., Any],
        format: str,  # noqa: A002 - the name in JSON schemas
        write: Callable[[Any], Any] | None = None,
        **schema: Any,
    ) -> None:
        self._parse: Final = parse
        self._write: Final = write
        self._schema: Final = {"type": "string", "format": format} | schema

    def __iter__(self) -> Iterator[object]:
        yield BeforeValidator(self._parse)
        if self._write is not None:
            yield PlainSerializer(self._write, when_used="json")
        yield WithJsonSchema(self._schema)


Size = Annotated[
    int, YamlValue(parse_size, "size", size_text, type=["integer", "string"], examples=["64MiB"])
]
"""A size in bytes."""
Duration = Annotated[
    float,
    YamlValue(
        parse_duration, "duration", duration_text, type=["string", "integer"], examples=["30s"]
    ),
]
"""A duration in seconds."""
HedgeAfter = Annotated[
    InstanceOf[HedgePolicy],
    YamlValue(parse_hedge, "duration or percentile", hedge_text, examples=["p95"]),
]
Text = Annotated[str, YamlValue(parse_text, "text", type=["string", "integer"])]
"""Text. A whole number, such as a version, is converted to its digits."""
Pattern = Annotated[str, YamlValue(parse_pattern, "pattern")]
HeaderGlob = Annotated[str, YamlValue(parse_header_glob, "header glob")]
HeaderName = Annotated[str, YamlValue(parse_header_name, "header name")]
ListenAddress = Annotated[InstanceOf[Address], YamlValue(parse_address, "host:port", str)]
SocketAddress = Annotated[
    InstanceOf[Address], YamlValue(parse_socket, "host:port or unix:/path", str)
]
HostName = Annotated[str, YamlValue(parse_host_name, "host name")]
FilePath = Annotated[InstanceOf[Path], YamlValue(_read_path, "path", str)]
FileMode = Annotated[int, YamlValue(parse_mode, "octal permissions", mode_text, examples=["660"])]
Protocol = Annotated[str, YamlValue(_parse_protocol, "protocol", examples=["v2-grpc"])]
ProfileName = Annotated[
    str, BeforeValidator(_parse_profile), WithJsonSchema({"enum": ["auto", *PROFILES]})
]
TensorType = Annotated[
    Datatype,
    BeforeValidator(_parse_datatype),
    PlainSerializer(lambda datatype: datatype.value),
    WithJsonSchema({"enum": list(DATATYPES_BY_NAME)}),
]
Labels = Annotated[
    tuple[str, ...],
    YamlValue(_read_labels, "labels", type=["array", "string"], items={"type": "string"}),
]
Name = Annotated[Text, Field(min_length=1)]
Dimension = Annotated[int, Field(ge=-1, lt=2**63)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
MAX_WORKERS: Final = 256
Percent = Annotated[float, Field(ge=0, le=100, json_schema_extra={"format": "percent"})]
"""A percentage, which may have a fraction."""
WholePercent = Annotated[int, Field(ge=0, le=100)]
PositivePercent = Annotated[float, Field(gt=0, le=100, json_schema_extra={"format": "percent"})]
"""A percentage above 0."""
Weight = Annotated[float, Field(ge=0.01, le=100, json_schema_extra={"format": "number"})]
Priority = Annotated[int, Field(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
PositiveSize = Annotated[Size, Field(ge=1)]
PositiveDuration = Annotated[Duration, Field(gt=0)]
NonFinite = Annotated[Literal["literal", "string", "null"], BeforeValidator(_accept_null)]
