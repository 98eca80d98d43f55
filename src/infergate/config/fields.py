"""The types of values in routes.yaml, each with its parser, serializer and JSON schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)

from infergate.codecs.profiles import PROFILES
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
    """Parse the path of a file. It is relative to the folder in the validation context."""
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
    known = ("auto", *PROFILES)
    if value not in known:
        raise ValueError(f"{describe_value(value)} is not a profile{suggestion(str(value), known)}")
    return str(value)


def _parse_protocol(value: Any) -> str:
    return protocols.parse_protocol(parse_text(value))


def _accept_null(value: Any) -> Any:
    """Accept an unquoted ``null``, which YAML reads as None."""
    return "null" if value is None else value


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(size_text, when_used="json"),
    WithJsonSchema({"type": ["integer", "string"], "format": "size", "examples": ["64MiB"]}),
]
"""A size in bytes."""
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, when_used="json"),
    WithJsonSchema({"type": ["string", "integer"], "format": "duration", "examples": ["30s"]}),
]
"""A duration in seconds."""
HedgeAfter = Annotated[
    InstanceOf[HedgePolicy],
    BeforeValidator(parse_hedge),
    PlainSerializer(hedge_text, when_used="json"),
    WithJsonSchema({"type": "string", "format": "duration or percentile", "examples": ["p95"]}),
]
Text = Annotated[
    str,
    BeforeValidator(parse_text),
    WithJsonSchema({"type": ["string", "integer"], "format": "text"}),
]
"""Text. A whole number, such as a version, is converted to its digits."""
Pattern = Annotated[
    str, BeforeValidator(parse_pattern), WithJsonSchema({"type": "string", "format": "pattern"})
]
HeaderGlob = Annotated[
    str,
    BeforeValidator(parse_header_glob),
    WithJsonSchema({"type": "string", "format": "header glob"}),
]
HeaderName = Annotated[
    str,
    BeforeValidator(parse_header_name),
    WithJsonSchema({"type": "string", "format": "header name"}),
]
ListenAddress = Annotated[
    InstanceOf[Address],
    BeforeValidator(parse_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "host:port"}),
]
SocketAddress = Annotated[
    InstanceOf[Address],
    BeforeValidator(parse_socket),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "host:port or unix:/path"}),
]
HostName = Annotated[
    str,
    BeforeValidator(parse_host_name),
    WithJsonSchema({"type": "string", "format": "host name"}),
]
FilePath = Annotated[
    InstanceOf[Path],
    BeforeValidator(_read_path),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "path"}),
]
FileMode = Annotated[
    int,
    BeforeValidator(parse_mode),
    PlainSerializer(mode_text),
    WithJsonSchema({"type": "string", "format": "octal permissions", "examples": ["660"]}),
]
Protocol = Annotated[
    str,
    BeforeValidator(_parse_protocol),
    WithJsonSchema({"type": "string", "format": "protocol", "examples": ["v2-grpc"]}),
]
ProfileName = Annotated[
    str,
    BeforeValidator(_parse_profile),
    WithJsonSchema({"enum": ["auto", *PROFILES]}),
]
TensorType = Annotated[
    Datatype,
    BeforeValidator(_parse_datatype),
    PlainSerializer(lambda datatype: datatype.value),
    WithJsonSchema({"enum": list(DATATYPES_BY_NAME)}),
]
Labels = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_labels),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}, "format": "labels"}),
]
Name = Annotated[Text, Field(min_length=1)]
Dimension = Annotated[int, Field(ge=-1, lt=2**63)]
Positive = Annotated[int, Field(ge=1)]
MAX_WORKERS: Final = 256
Percent = Annotated[
    float,
    Field(ge=0, le=100),
    WithJsonSchema({"type": "number", "format": "percent", "minimum": 0, "maximum": 100}),
]
"""A percentage; fractions are allowed."""
PositivePercent = Annotated[
    float,
    Field(gt=0, le=100),
    WithJsonSchema({"type": "number", "format": "percent", "exclusiveMinimum": 0, "maximum": 100}),
]
"""A percentage above 0."""
Weight = Annotated[
    float,
    Field(ge=0.01, le=100),
    WithJsonSchema({"type": "number", "format": "number", "minimum": 0.01, "maximum": 100}),
]
Priority = Annotated[int, Field(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
PositiveSize = Annotated[Size, Field(ge=1)]
PositiveDuration = Annotated[Duration, Field(gt=0)]
NonFinite = Annotated[Literal["literal", "string", "null"], BeforeValidator(_accept_null)]
