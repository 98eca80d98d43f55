"""``infergate explain``: shows the route of a request, and the message that each backend would
receive.

``client_request`` reads the request. ``explanation`` runs it through the real frontend, route and
backends of a configuration, but the upstreams of these backends (``capture``) keep the messages
instead of sending them. ``explanation_text`` prints the result, and ``client_code`` prints the
request as code for several clients."""
