"""The public library: a gateway inside the caller's program. Users import its names from
``infergate`` (docs/library.md).

Read ``gateway`` first. ``addresses`` describes its listeners, and ``tensors`` converts arrays."""
