"""``infergate explain``: shows the route of a request, and the message that each backend would
receive.

``client_request`` builds the request. ``explanation`` runs the request through the real frontend,
route and backends of a configuration, with upstreams (``capture``) that keep messages instead of
sending them. ``explanation_text`` formats the result, and ``client_code`` writes the request as
programs for several clients."""
