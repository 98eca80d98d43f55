"""The public library: a gateway inside the caller's program. Programs import the names from
``infergate`` (docs/library.md).

Read ``gateway`` first. ``addresses`` describes the listeners, ``request_types`` checks the types of
request fields, and ``tensors`` converts arrays."""
