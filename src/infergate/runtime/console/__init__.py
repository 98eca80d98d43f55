"""The console: a web page on the admin port, and the JSON that it and the terminal commands read.

Entry point: ``console.Console``. Read ``console`` (the paths below ``/console``), ``sources`` (one
process or several workers), ``state`` and ``plan`` (traffic and configuration as JSON),
``try_request`` (sends test requests), ``wire_format`` and ``tensor_format`` (messages and tensors
for people), ``browser_checks`` (CSRF and DNS rebinding), ``page`` (the static files).

Requests pay nothing for it: it reads what metrics count anyway and what
``observe.recent_requests`` keeps, and its modules are imported on first use. Its page is
docs/console.md, the reasons are in docs/decisions/0032-console.md.
"""
