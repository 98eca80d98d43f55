"""The console: a web page on the admin port, and the JSON that the page and terminal commands read.

The entry point is ``console.Console``. Read ``console`` (the paths below ``/console``), ``sources``
(one process or several workers), ``state`` and ``plan`` (traffic and configuration as JSON),
``history`` with ``history_sampler`` and ``history_query`` (the last hour), ``try_request`` with
``tensor_format`` (sends test requests), ``demo``, ``browser_checks`` (CSRF and DNS rebinding) and
``page`` (the static files).

The console does not slow down requests: it reads existing metrics and ``observe.recent_requests``.
``console`` is imported on first use (docs/console.md, docs/decisions/0032-console.md)."""
