"""Imports the class of a plug-in, which is named by ``module:Class`` or by an entry point."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import re
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from infergate.core.log_events import PLUGIN_SLOW
from infergate.plugins.base import API_VERSION, Plugin

T = TypeVar("T")
P = TypeVar("P", bound=Plugin)

HOOKS: Final = "infergate.hooks"
"""The entry point group of request hooks."""
BACKENDS: Final = "infergate.backends"
"""The entry point group of Python models."""
TRANSFORMS: Final = "infergate.transforms"
"""The entry point group of transforms."""
SLOW_SECONDS: Final = 5.0
"""Seconds after which a log line reports that a plug-in is still being imported or created."""
IMPORT_SECONDS: Final = 120.0
"""Maximum duration of an import. Large libraries take half a minute from a cold disk."""
_PATH: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_log: Final = logging.getLogger(__name__)


class PluginError(Exception):
    """A plug-in cannot be used. The message names the plug-in and the reason."""


def load_class(reference: str, group: str, base: type[P]) -> type[P]:
    """Return the subclass of ``base`` that ``reference`` names. ``reference`` is ``module:Class``,
    or the name of an entry point of ``group``. Raises PluginError."""
    if ":" in reference:
        module, _, name = reference.partition(":")
        if not (_PATH.fullmatch(module) and _PATH.fullmatch(name)):
            raise PluginError(f"'{reference}' is not of the form 'package.module:Class'")
        candidate = run_within(
            IMPORT_SECONDS, f"importing '{reference}'", lambda: _import(module, name)
        )
    else:
        entry = _entry_point(reference, group)
        candidate = run_within(
            IMPORT_SECONDS, f"importing '{reference}' ({entry.value})", entry.load
        )
    return _check_class(candidate, reference, base)


def _import(module: str, name: str) -> Any:
    candidate: Any = importlib.import_module(module)
    for part in name.split("."):
        candidate = getattr(candidate, part)
    return candidate


def _entry_point(name: str, group: str) -> EntryPoint:
    installed = entry_points(group=group)
    matching = [entry for entry in installed if entry.name == name]
    if len(matching) > 1:
        packages = " and ".join(sorted(entry.dist.name for entry in matching if entry.dist))
        raise PluginError(
            f"the entry point '{name}' of '{group}' is provided by several packages: {packages}"
        )
    if not matching:
        names = sorted({entry.name for entry in installed})
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "; use 'module:Class' for a class"
        raise PluginError(f"no installed package has the entry point '{name}' of '{group}'{hint}")
    return matching[0]


def _check_class(candidate: Any, reference: str, base: type[P]) -> type[P]:
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        raise PluginError(f"'{reference}' is not a subclass of infergate.plugins.{base.__name__}")
    major, _, minor = candidate.plugin_api.partition(".")
    own_major, _, own_minor = API_VERSION.partition(".")
    if major != own_major or not minor.isdecimal() or int(minor) > int(own_minor):
        raise PluginError(
            f"'{reference}' needs version {candidate.plugin_api} of the plug-in interface; this "
            f"infergate has {API_VERSION}"
        )
    if inspect.isabstract(candidate):
        missing = ", ".join(sorted(getattr(candidate, "__abstractmethods__", ())))
        raise PluginError(f"'{reference}' does not define {missing}")
    return candidate


def run_within(seconds: float, activity: str, function: Callable[[], T]) -> T:
    """Call ``function`` in a new thread and return its result. Blocks the calling thread, and logs
    ``activity`` if the function is slow.

    Raises PluginError if the function raises an exception, or does not return within ``seconds``.
    After ``seconds``, the thread continues until the function returns or the process ends."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
            errors.append(error)

    thread = threading.Thread(target=run, name=f"infergate {activity}", daemon=True)
    thread.start()
    thread.join(min(SLOW_SECONDS, seconds))
    if thread.is_alive() and seconds > SLOW_SECONDS:
        _log.warning("%s takes more than %g seconds", activity, SLOW_SECONDS, extra=PLUGIN_SLOW)
        thread.join(seconds - SLOW_SECONDS)
    if errors:
        raise PluginError(f"{activity} failed: {describe_exception(errors[0])}") from errors[0]
    if not results:
        raise PluginError(f"{activity} did not end within {seconds:g} seconds")
    return results[0]


def describe_exception(error: BaseException) -> str:
    """Return the class and the text of ``error`` in one line of limited length."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - __str__ of a plug-in's exception
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[:500] if text else name
