"""The public library: a gateway inside the caller's program. Users import its names from
``infergate`` (docs/library.md).

Read ``gateway`` first. ``addresses`` describes its listeners, ``request_types`` checks the types in
requests, and ``tensors`` converts arrays."""
