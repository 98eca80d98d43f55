"""The reference page and the JSON schema, made from the schema's own descriptions.

``python -m infergate.config.reference [FOLDER]`` writes both, by default to ``docs``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infergate.config.schema import Config
from infergate.config.section import Section

PAGE: Final = "configuration.md"
SCHEMA: Final = "routes.schema.json"

_HEAD: Final = """\
# routes.yaml

<!-- Made by `python -m infergate.config.reference`: change the descriptions in the schema. -->

`infergate --config routes.yaml` serves what this file says; `--check` only tells what it says.
A mistake is told with its line, its path and the nearest right name, and all mistakes at once:

```text
routes.yaml:12: backends.trt.endpoint: unknown key 'endpoint'; did you mean 'endpoints'?
```

Editors that know JSON schemas complete and check the file with
[routes.schema.json](routes.schema.json).

## How values are written

- **Sizes**: `100B`, `64KiB`, `64MiB`, `1GiB`, or a whole number of bytes.
- **Durations**: `250ms`, `30s`, `5m`, `1h`. Only `0` needs no unit.
- **Addresses**: `127.0.0.1:8000`, `0.0.0.0:8000` for every interface, `[::1]:8000`; port 0 takes
  a free one. With the environment: `${HOST:-127.0.0.1}:${HTTP_PORT:-8000}`.
- **Environment**: `${NAME}` and `${NAME:-default}` are replaced anywhere in a value; the default
  also takes the place of an empty variable. A value without quotes is then read as any other
  (`${N}` may be a number); one in quotes stays text. `$${` stands for `${` itself. Between `{ }`
  and `[ ]` such a value needs quotes.
- **YAML** is read by the rules of version 1.2: only `true` and `false` are truth values, and
  `010`, `yes` or `2024-01-01` are text. Anchors, aliases and `<<` work. A key may stand only once.
- **Models** of routes are a name, a glob (`*`, `?`, `[…]`) or `/a regular expression/` that must
  match the whole name. The first route that matches is taken; one that no request can reach is a
  mistake.

## Keys
"""


def markdown() -> str:
    """The reference page."""
    schema = json_schema()
    return _HEAD + "".join(f"\n{text}" for text in _sections("", schema, schema["$defs"]))


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a routes.yaml."""
    schema = Config.model_json_schema(by_alias=True)
    for section in Section.__subclasses__():
        spelt = section.model_construct().model_dump(mode="json", by_alias=True)
        shape = schema if section is Config else schema["$defs"][section.__name__]
        for key, value in shape["properties"].items():
            if "default" in value:  # as an operator would write it: 30s, not 30.0
                value["default"] = spelt[key]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write(folder: Path) -> None:
    """Write both into ``folder``."""
    (folder / PAGE).write_text(markdown(), encoding="utf-8")
    (folder / SCHEMA).write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")


def _sections(path: str, section: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """The table of ``section``'s keys, then those of the sections within it."""
    title = f"### `{path}`" if path else "### The file"
    text = f"{title}\n\n{section['description']}\n\n"
    text += "| Key | Value | Default | Meaning |\n|---|---|---|---|\n"
    for key, value in section["properties"].items():
        default = _default(value, required=key in section.get("required", ()))
        text += f"| `{key}` | {_kind(value)} | {default} | {value['description']} |\n"
    yield text
    for key, value in section["properties"].items():
        for suffix, name in _within(value):
            here = f"{path}.{key}{suffix}" if path else key + suffix
            yield from _sections(here, known[name], known)


def _within(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The section that ``value`` is or holds: how its path goes on, and its name in the schema."""
    if "$ref" in value:
        yield "", value["$ref"].rpartition("/")[2]
    for choice in (*value.get("anyOf", ()), *value.get("allOf", ())):
        yield from _within(choice)
    if isinstance(value.get("items"), dict):
        yield from (("[]" + suffix, name) for suffix, name in _within(value["items"]))
    if isinstance(value.get("additionalProperties"), dict):
        inner = _within(value["additionalProperties"])
        yield from ((".<name>" + suffix, name) for suffix, name in inner)


def _kind(value: dict[str, Any]) -> str:
    """What a value is called on the page."""
    if "$ref" in value or "allOf" in value:
        return "section"
    if "anyOf" in value:  # something or null
        return _kind(value["anyOf"][0])
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in value["enum"])
    match value["type"]:
        case "array":
            return f"list of: {_kind(value['items'])}"
        case "object":
            return f"by name: {_kind(value['additionalProperties'])}"
        case "boolean":
            return "`true` or `false`"
        case "integer":
            return "whole number"
        case _:
            return str(value["format"])


def _default(value: dict[str, Any], *, required: bool) -> str:
    if required:
        return "**required**"
    default = value["default"]
    if any(_within(value)) and default:
        return "see below"
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    if isinstance(default, list) and default:
        return ", ".join(f"`{each}`" for each in default)
    return f"`{default}`" if default or default == 0 else "none"


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
