"""Parses YAML into plain data, and records the line of every value.

PyYAML composes nodes with line numbers; this module converts the nodes to data, and keeps a table
of lines by path. Sequences become tuples.

*Rule 1.* An unquoted scalar is null, a boolean, a decimal number or text. Unlike in YAML 1.1,
``yes``, ``010``, ``1:30`` and dates are text. Keys are always text.
*Rule 2.* ``${NAME}`` and ``${NAME:-default}`` are replaced in values, but not in keys, before the
type of an unquoted scalar is determined. A quoted scalar remains text. As in a shell, the default
also replaces an empty variable. ``$${`` stands for a literal ``${``.
*Rule 3.* Parsing continues after every error that ``parse`` does not raise. The paths of erroneous
values are recorded, so that later checks do not report these values again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from infergate.config.mistakes import ConfigError, KeyPath, Mistake, format_path

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_NODES: Final = 1_000_000
"""Maximum number of values, which limits the expansion of nested aliases. A configuration of ten
thousand routes has a tenth of this number."""

_NULL: Final = re.compile(r"~|null|Null|NULL|")
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+)")
_PLAIN_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "null", "bool", "int", "float", "timestamp", "value", "merge", "seq", "map")
)
_MERGE: Final = "tag:yaml.org,2002:merge"
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
"""Matches ``$${``, a complete ``${…}``, or an incomplete ``${``. For an incomplete ``${``, group 1
is not set."""


@dataclass(slots=True)
class YamlSource:
    """The data of a YAML file, and the errors found while parsing it.

    ``lines`` has the line, counted from 1, of the key or list item at each path."""

    file: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    erroneous: set[KeyPath] = field(default_factory=set)

    def line(self, path: KeyPath) -> int:
        """Return the line of ``path`` or, if ``path`` is not in the file, of the innermost
        enclosing entry."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def has_error(self, path: KeyPath) -> bool:
        """Return whether an error was already reported for ``path`` or an entry that contains
        it."""
        return any(path[:length] in self.erroneous for length in range(len(path) + 1))


def parse(text: str, file: str, environ: Mapping[str, str]) -> YamlSource:
    """Parse ``text``. ``file`` is the name of the text in error messages; ``environ`` is the
    environment.

    Raises ConfigError for a syntax error, an empty file, or a file that is nested too deeply. Other
    errors are in ``mistakes``."""
    source = YamlSource(file)
    try:
        node = _compose(text)
        if node is None:
            raise ConfigError.of_file(file, "the file is empty")
        source.data = _Converter(source, environ).convert(node, (), node.start_mark.line + 1)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        column = f" (column {mark.column + 1})" if mark else ""
        problem = error.problem or ""
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        problem = f"not YAML: {problem}{column}{_hint(text, line)}"
        raise ConfigError.of_file(file, problem, line) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError.of_file(file, f"not YAML: {error}") from None
    except RecursionError:
        raise ConfigError.of_file(file, "not readable: nested too deeply") from None
    return source


def from_data(data: Mapping[str, Any], name: str) -> YamlSource:
    """Return plain ``data`` as if it had been parsed from a file called ``name``. Every value is on
    line 0. Raises ConfigError if the data is nested too deeply."""
    source = YamlSource(name)
    try:
        source.data = _copy(data, (), source.lines)
    except RecursionError:
        raise ConfigError.of_file(name, "not readable: nested too deeply") from None
    return source


def _copy(value: Any, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """Copy ``value`` with sequences as tuples, and set the line of each value to 0."""
    lines[path] = 0
    if isinstance(value, Mapping):
        return {str(key): _copy(item, (*path, str(key)), lines) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_copy(item, (*path, i), lines) for i, item in enumerate(value))
    return value


def _compose(text: str) -> yaml.Node | None:
    """Return the root node. Errors always come from the pure Python loader, so that their text does
    not depend on the installed loader."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def _hint(text: str, line: int) -> str:
    lines = text.splitlines()
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    if "${" in text:
        return "; between { } and [ ] a value with ${…} must be in quotes"
    if re.search(r"(:|-)\s+\*", text):
        return "; a value that begins with * must be in quotes, for example model: '*'"
    return ""


class _Converter:
    def __init__(self, source: YamlSource, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._enclosing: list[yaml.Node] = []

    def convert(self, node: yaml.Node, path: KeyPath, line: int) -> Any:
        """Return the data of ``node``, which is at ``path`` on ``line``."""
        lines = self._source.lines
        lines[path] = line
        if any(node is outer for outer in self._enclosing):
            return self._report_at(path, "the alias contains itself")
        if len(lines) > _MAX_NODES:
            problem = f"the file has more than {_MAX_NODES} values; check for nested aliases"
            return self._report_at(path, problem)
        if node.tag not in _PLAIN_TAGS:
            return self._report_at(path, f"the tag '{node.tag}' is not supported")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._enclosing.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return tuple(
                self.convert(item, (*path, i), item.start_mark.line + 1)
                for i, item in enumerate(node.value)
            )
        finally:
            self._enclosing.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged += self._merged(value, path)
            elif not isinstance(key, yaml.ScalarNode):
                self._report(line, path, "a key must be a name")
            elif key.value in first:
                self._report(
                    line,
                    (*path, key.value),
                    f"duplicate key '{key.value}', first on line {first[key.value]}",
                )
            else:
                first[key.value] = line
                data[key.value] = self.convert(value, (*path, key.value), line)
        for key, value in merged:
            if key.value not in data:
                line = key.start_mark.line + 1
                data[key.value] = self.convert(value, (*path, key.value), line)
        return data

    def _merged(self, node: yaml.Node, path: KeyPath) -> list[tuple[yaml.Node, yaml.Node]]:
        mappings = node.value if isinstance(node, yaml.SequenceNode) else [node]
        pairs: list[tuple[yaml.Node, yaml.Node]] = []
        for mapping in mappings:
            if not isinstance(mapping, yaml.MappingNode):
                self._report(
                    mapping.start_mark.line + 1, path, "'<<' takes a mapping or a list of mappings"
                )
                continue
            for key, value in mapping.value:
                if key.tag == _MERGE:
                    pairs += self._merged(value, path)
                elif isinstance(key, yaml.ScalarNode):
                    pairs.append((key, value))
        return pairs

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        errors: list[str] = []
        text = _VARIABLE.sub(lambda match: self._substitute(match, errors), node.value)
        for message in errors:
            self._report_at(path, message)
        return text if node.style or errors else _plain_scalar(text)

    def _substitute(self, match: re.Match[str], errors: list[str]) -> str:
        name, default = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            errors.append(
                "'${' begins an environment variable: write ${NAME}, ${NAME:-default}, "
                "or $${ for the literal text"
            )
            return match[0]
        value = self._environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            errors.append(
                f"the environment variable '{name}' is not set (${{{name}:-…}} gives a default)"
            )
            return match[0]
        return value

    def _report_at(self, path: KeyPath, message: str) -> None:
        self._source.erroneous.add(path)
        self._report(self._source.lines[path], path, message)

    def _report(self, line: int, path: KeyPath, message: str) -> None:
        self._source.mistakes.append(Mistake(self._source.file, line, format_path(path), message))


def _plain_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar (Rule 1)."""
    if _NULL.fullmatch(text):
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
