"""Measures the memory of objects, ten times as fast as tracemalloc."""

from __future__ import annotations

import gc
import sys
import types

_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def package_size(name: str, *roots: object) -> int:
    """Return the total size in bytes of ``roots``, of the globals of the modules ``infergate.name``
    and ``infergate.name.*``, and of all objects reachable from them, except code."""
    modules = [vars(module) for path, module in sys.modules.items() if f"infergate.{name}" in path]
    seen, size, pending = set(), 0, [*roots, *modules]
    while pending:
        each = pending.pop()
        if id(each) not in seen and not isinstance(each, _CODE):
            seen.add(id(each))
            size += sys.getsizeof(each)
            pending += gc.get_referents(each)
            if isinstance(each, dict):
                pending += each  # get_referents omits keys if all are strings
    return size
