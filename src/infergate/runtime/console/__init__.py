"""The console: a web page on the admin port, and the JSON that it and the terminal commands read.

Entry point: ``console.Console``. Read ``console`` (the paths below ``/console``), ``sources`` (one
process or several workers), ``state`` and ``plan`` (traffic and configuration as JSON),
``try_request`` (sends test requests), ``wire_format`` and ``tensor_format`` (messages and tensors
as text), ``browser_checks`` (CSRF and DNS rebinding), ``page`` (the static files).

Requests pay nothing for it: it reads the metrics' counters and ``observe.recent_requests``, and its
modules are imported on first use. See docs/console.md and docs/decisions/0032-console.md.
"""
