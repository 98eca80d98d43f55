"""Checks that the schema cannot make: conflicts between entries of routes.yaml, such as references
to unknown backends, and errors in plug-ins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from posixpath import normpath
from typing import Final

from infergate.config import protocols
from infergate.config.access import check_access
from infergate.config.comparison_checks import comparison_findings
from infergate.config.mistakes import Finding, KeyPath, duplicates, format_path, suggestion
from infergate.config.models import TensorConfig
from infergate.config.names import name_findings
from infergate.config.outline import Outline
from infergate.config.plugins import class_findings, codec_findings
from infergate.config.rewrite import RewriteConfig
from infergate.config.routes import RouteConfig, named_backends, named_rewrites
from infergate.config.schema import BackendConfig
from infergate.config.values import Url
from infergate.core.conversion import LOSSLESS_TARGETS
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.routing import table
from infergate.transport.base import Address

_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared, not bound
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_CATCH_ALL: Final = frozenset({"*", "/.*/", "/.+/"})
ONE_WORKER: Final = (
    "shared memory requires a single worker: a region is registered with one process, but another "
    "process may accept the client's next connection"
)
_OPEN_ACTIONS: Final = (
    "anyone who can connect to the admin port could send requests to every model, bypassing "
    "'access': set listeners.admin.keys"
)
_GROUP: Final = re.compile(r"\\(?:[0-9]|g<)")


def check(outline: Outline) -> Iterator[Finding]:
    """Yield an error for every conflict between the entries of ``outline``, and for every invalid
    plug-in."""
    yield from _listeners(outline.listeners)
    if not outline.has_frontend:
        problem = "http and grpc are off and graphpipe has no listener: no client could connect"
        yield ("listeners",), problem
    if outline.has_workers and outline.shares_memory:
        yield ("control", "shared_memory"), ONE_WORKER
    for name, backend in (outline.backends or {}).items():
        if backend is not None:
            yield from _schemes(name, backend)
            yield from _loops(name, backend, outline.listeners)
    for index, route in outline.routes.items():
        for path, message in _route(route, outline):
            yield ("routes", index, *path), message
    yield from _plugins(outline)
    yield from _payload_logs(outline)
    yield from _unreachable(outline.routes)
    yield from _models(outline)
    yield from comparison_findings(outline)
    if any(route.transforms is not None for route in outline.routes.values()):
        from infergate.config.transform_checks import transform_findings  # noqa: PLC0415 - rare

        yield from transform_findings(outline)
    yield from name_findings(outline)
    if outline.access is not None:
        if outline.has_open_actions:
            yield ("listeners", "admin", "actions"), _OPEN_ACTIONS
        yield from check_access(outline.access)


def _listeners(listeners: Mapping[KeyPath, Address]) -> Iterator[Finding]:
    earlier: dict[KeyPath, Address] = {}
    for path, address in listeners.items():
        for other, other_address in earlier.items():
            if _collide(address, other_address):
                used = f"is already used by the listener '{format_path(other)}' ({other_address})"
                yield ("listeners", *path, "address"), f"{address} {used}"
                break
        earlier[path] = address


def _collide(first: Address, second: Address) -> bool:
    if first.unix or second.unix:
        return normpath(first.unix) == normpath(second.unix)
    if first.port != second.port or first.port == 0:
        return False
    hosts = {_host(first), _host(second)}
    return len(hosts) == 1 or bool(hosts & _WILDCARDS)


def _host(address: Address) -> str:
    host = address.host.lower().rstrip(".")
    return "127.0.0.1" if host == "localhost" else host


def _schemes(name: str, backend: BackendConfig) -> Iterator[Finding]:
    schemes = protocols.schemes(backend.protocol)
    if not schemes:
        return
    for index, url in enumerate(backend.endpoints):
        if (problem := _url_problem(url, backend.protocol, schemes)) is not None:
            yield ("backends", name, "endpoints", index), problem
    # Equal endpoints would share their metrics.
    for index, same, _ in duplicates(enumerate(map(str, backend.endpoints))):
        shown = backend.endpoints[index].display_name
        problem = f"'{shown}' is the same as endpoints[{same}]; to set its share, use 'weight'"
        yield ("backends", name, "endpoints", index), problem


def _loops(
    name: str, backend: BackendConfig, listeners: Mapping[KeyPath, Address]
) -> Iterator[Finding]:
    """Yield an error for each endpoint that is a listener of this gateway: requests would loop."""
    for index, url in enumerate(backend.endpoints):
        if url.scheme in protocols.UNIX_SCHEMES:
            target = Address("", 0, unix=url.path)
        else:
            target = Address(url.host, url.port or protocols.DEFAULT_PORTS.get(url.scheme, 0))
        for path, address in listeners.items():
            is_local = target.unix or _host(target) in _LOOPBACK or _host(target) == _host(address)
            if is_local and _collide(target, address):
                listener = f"the listener '{format_path(path)}' of this gateway"
                problem = f"'{url.display_name}' is {listener}; requests would loop"
                yield ("backends", name, "endpoints", index), problem


def _url_problem(url: Url, protocol: str, schemes: tuple[str, ...]) -> str | None:
    if url.scheme not in schemes:
        expected = " or ".join(_url_form(scheme) for scheme in schemes)
        return f"'{url.display_name}' does not match the protocol {protocol}: expected {expected}"
    if url.scheme in protocols.UNIX_SCHEMES:
        return None
    if url.port == 0:
        return f"'{url.display_name}': cannot connect to port 0"
    if url.port is None and url.scheme not in protocols.DEFAULT_PORTS:
        return f"'{url.display_name}' needs a port, like {url.scheme}://{url.host}:8001"
    if url.path and url.scheme not in protocols.DEFAULT_PORTS:
        return f"'{url.display_name}': a {url.scheme}:// URL must not have a path"
    return None


def _url_form(scheme: str) -> str:
    return f"{scheme}:/path" if scheme in protocols.UNIX_SCHEMES else f"{scheme}://"


def _route(route: RouteConfig, outline: Outline) -> Iterator[Finding]:
    """Yield the errors in ``route``, with paths relative to the route."""
    for path, name in named_backends(route):
        if outline.backends is not None and name not in outline.backends:
            yield path, f"there is no backend '{name}'{suggestion(name, outline.backends)}"
    for position, name in enumerate(route.hooks):
        if name not in outline.hooks:
            problem = f"there is no hook '{name}'{suggestion(name, outline.hooks)}"
            yield ("hooks", position), problem
    for position, _, name in duplicates(enumerate(route.hooks)):
        yield ("hooks", position), f"the hook '{name}' is listed twice"
    for path, rewrite in named_rewrites(route):
        yield from _rewrite(path, route.model, rewrite)
    yield from _contradictions(route)
    for name, target in route.cast.items():
        if (cast_problem := _cast_problem(name, target)) is not None:
            yield ("cast", name), cast_problem
    if route.record is not None and not outline.has_recording:
        yield ("record",), "record requires the section 'recording', which names a folder"


def _plugins(outline: Outline) -> Iterator[Finding]:
    for name, hook in outline.hooks.items():
        if hook is not None:
            yield from class_findings(("hooks", name), "hook", hook.hook, hook.options)
    for name, backend in (outline.backends or {}).items():
        if backend is None or backend.protocol == protocols.BUILTIN:
            continue
        if backend.protocol == protocols.PYTHON:
            yield from class_findings(("backends", name), "model", backend.model, backend.options)
        else:
            path: KeyPath = ("backends", name, "options")
            yield from codec_findings(path, backend.protocol, backend.options)
    for protocol, options in outline.codec_options.items():
        yield from codec_findings(("listeners", "codecs", protocol), protocol, options)


def _rewrite(path: KeyPath, pattern: str, rewrite: RewriteConfig) -> Iterator[Finding]:
    if (problem := _template_problem(pattern, rewrite.model)) is not None:
        yield (*path, "model"), problem
    for side, names in (("inputs", rewrite.inputs), ("outputs", rewrite.outputs)):
        for client_name, earlier, backend_name in duplicates(names.items()):
            problem = f"'{earlier}' is already rewritten to '{backend_name}'"
            yield (*path, side, client_name), problem


def _template_problem(pattern: str, template: str) -> str | None:
    if not table.is_regex(pattern):
        if _GROUP.search(template):
            return f"'{template}' refers to a group, but '{pattern}' is not a /regular expression/"
        return None
    try:
        # `sub` parses the template even if the pattern does not match the empty text.
        table.compile_pattern(pattern).sub(template, "")
    except (re.error, IndexError) as error:
        return f"'{template}' is not a valid template for '{pattern}': {error}"
    return None


def _contradictions(route: RouteConfig) -> Iterator[Finding]:
    if not route.idempotent:
        reason = "requires 'idempotent: true', since it may send a request twice"
        if route.hedge is not None:
            yield ("hedge",), f"hedge {reason}"
        if route.retry.per_try_timeout is not None:
            yield ("retry", "per_try_timeout"), f"per_try_timeout {reason}"
        if route.cache is not None:
            problem = "cache requires 'idempotent: true', since it skips repeated inferences"
            yield ("cache",), problem
    if route.cache is not None and route.split:
        problem = "a client could get the response of another target"
        yield ("cache",), f"cache cannot be combined with split: {problem}"
    total = sum(target.percent for target in route.split)
    if total > 100:
        yield ("split",), f"the percentages add up to {total:g}; the maximum is 100"
    if route.split_by and not route.split:
        yield ("split_by",), "split_by has no effect without split"
    if route.fallback == route.backend:
        yield ("fallback",), f"'{route.fallback}' is already the backend of this route"


def _payload_logs(outline: Outline) -> Iterator[Finding]:
    logged = {index: item for index, item in outline.routes.items() if item.payload_log is not None}
    first: dict[tuple[str, str], int] = {}
    for index, route in logged.items():
        path = ("routes", index, "payload_log")
        if not outline.has_payload_log:
            yield path, "requires the top-level section payload_log, which names the sink"
        earlier = first.setdefault((route.model, route.version), index)
        if outline.routes[earlier].payload_log != route.payload_log:
            yield (
                path,
                (
                    f"must equal routes[{earlier}].payload_log, because both routes have the same "
                    "model and version"
                ),
            )


def _cast_problem(name: str, target: Datatype) -> str | None:
    castable = [datatype.value for datatype in LOSSLESS_TARGETS]
    if name not in DATATYPES_BY_NAME:
        return f"'{name}' is not a datatype{suggestion(name, castable)}"
    if name not in castable:
        return f"all protocols support {name}: only {' and '.join(castable)} can be cast"
    exact = LOSSLESS_TARGETS[DATATYPES_BY_NAME[name]]
    if target not in exact:
        allowed = ", ".join(datatype.value for datatype in Datatype if datatype in exact)
        return f"{name} cannot be cast to {target.value}; expected one of: {allowed}"
    return None


def _unreachable(routes: Mapping[int, RouteConfig]) -> Iterator[Finding]:
    by_pattern: dict[str, list[tuple[int, str]]] = {}
    globs: list[tuple[int, RouteConfig, Callable[[str], object]]] = []
    for index, route in routes.items():
        covering = [
            i
            for pattern in (route.model, *_CATCH_ALL)
            for i, version in by_pattern.get(pattern, ())
            if version in ("", route.version)
        ]
        if not (is_pattern := table.is_regex(route.model) or table.is_glob(route.model)):
            covering += [
                i
                for i, earlier, matches in globs
                if earlier.version in ("", route.version) and matches(route.model)
            ]
        covering = [i for i in covering if routes[i].headers.items() <= route.headers.items()]
        if covering:
            first = min(covering)
            reason = f"routes[{first}] ('{routes[first].model}') matches all its requests"
            yield ("routes", index, "model"), f"unreachable: {reason}"
        by_pattern.setdefault(route.model, []).append((index, route.version))
        if is_pattern:
            globs.append((index, route, table.model_matcher(route.model)))


def _models(outline: Outline) -> Iterator[Finding]:
    patterns = [table.Route(route.model, route.backend) for route in outline.routes.values()]
    routed = table.RouteTable(patterns)
    for path, name in outline.listener_models.items():
        if outline.has_all_routes and not routed.candidates(name):
            yield path, f"no route matches the model '{name}'"
    for name, model in outline.models.items():
        if outline.has_all_routes and not routed.candidates(name):
            yield ("models", name), f"no route matches the model '{name}'"
        if model is not None:
            yield from _tensors(name, "inputs", model.inputs)
            yield from _tensors(name, "outputs", model.outputs)


def _tensors(model: str, side: str, tensors: tuple[TensorConfig, ...]) -> Iterator[Finding]:
    for index, _, name in duplicates(enumerate(tensor.name for tensor in tensors)):
        yield ("models", model, side, index, "name"), f"'{name}' occurs twice in {side}"
