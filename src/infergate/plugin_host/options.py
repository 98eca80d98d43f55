"""Validates the options of a plug-in with the plug-in's pydantic model or dataclass."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from infergate.plugin_host.loading import describe_exception

OptionPath = tuple[str | int, ...]


class OptionsError(Exception):
    """The options of a plug-in are invalid. ``findings`` holds the path of each invalid value,
    relative to the options, with a message."""

    def __init__(self, findings: Collection[tuple[OptionPath, str]]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{_format(path)}{text}" for path, text in self.findings))


def _format(path: OptionPath) -> str:
    return f"{'.'.join(map(str, path))}: " if path else ""


def read_options(options_type: type | None, values: Mapping[str, Any]) -> Any:
    """Return ``values`` as an instance of ``options_type``, or None if ``options_type`` is None.
    Raises OptionsError for invalid values, and for names that the type does not have."""
    if options_type is None:
        if values:
            raise OptionsError([((name,), "the plug-in has no options") for name in values])
        return None
    findings = list(_unknown_names(options_type, values))
    options: Any = None
    try:
        options = TypeAdapter(options_type).validate_python(dict(values))
    except ValidationError as error:
        findings += [
            (details["loc"], _message(details))
            for details in error.errors(include_url=False, include_input=False)
            if details["type"] not in {"extra_forbidden", "unexpected_keyword_argument"}
            or details["loc"] not in {path for path, _ in findings}
        ]
    except PydanticUserError as error:  # options_type is neither a model nor a dataclass
        raise OptionsError(
            [((), f"options_type is invalid: {describe_exception(error)}")]
        ) from None
    except Exception as error:  # noqa: BLE001 - validators are the plug-in's code
        raise OptionsError([((), f"validation failed: {describe_exception(error)}")]) from None
    if findings:
        raise OptionsError(findings)
    return options


def _unknown_names(
    options_type: type, values: Mapping[str, Any]
) -> Iterator[tuple[OptionPath, str]]:
    """Yield each name in ``values`` that the type does not have, with a message."""
    if issubclass(options_type, BaseModel):
        if options_type.model_config.get("extra") == "allow":
            return
        names = {field.alias or name for name, field in options_type.model_fields.items()}
        names |= set(options_type.model_fields)
    elif dataclasses.is_dataclass(options_type):
        names = {field.name for field in dataclasses.fields(options_type) if field.init}
    else:
        return
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = (
                f"did you mean '{close[0]}'?" if close else f"expected: {', '.join(sorted(names))}"
            )
            yield (name,), f"unknown option '{name}'; {hint}"


def _message(details: ErrorDetails) -> str:
    if details["type"] == "missing":
        return "this option is required"
    return details["msg"].removeprefix("Value error, ")
