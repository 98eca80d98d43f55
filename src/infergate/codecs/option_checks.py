"""Functions that check the options of a codec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def check_option_names(options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise ValueError if ``options`` has a name that is not in ``names``."""
    for name in options:
        if name not in names:
            raise ValueError(f"{name!r} is not an option; the options are {', '.join(names)}")


def read_choice(options: Mapping[str, Any], name: str, choices: Collection[str]) -> str:
    """Return the option ``name``. The default is the first of ``choices``. Raises ValueError for a
    value that is not in ``choices``."""
    choice = options.get(name, next(iter(choices)))
    if not isinstance(choice, str) or choice not in choices:
        raise ValueError(f"{name} is {choice!r}; expected one of {list(choices)}")
    return choice
