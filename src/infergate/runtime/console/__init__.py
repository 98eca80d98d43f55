"""The console: a web page on the admin port, and the JSON that the page and terminal commands read.

The entry point is ``console.Console``. Read ``console`` (the paths below ``/console``), ``sources``
(one process or several workers), ``state`` and ``plan`` (traffic and configuration as JSON),
``try_request`` (sends test requests), ``wire_format`` and ``tensor_format`` (readable messages and
tensors), ``browser_checks`` (CSRF and DNS rebinding) and ``page`` (the static files).

The console does not slow down requests: it reads existing metrics and ``observe.recent_requests``,
and is imported on first use (docs/console.md, docs/decisions/0032-console.md)."""
