"""Code that the upstreams of all protocols share.

``connect`` opens one connection to an endpoint, ``pool`` keeps idle connections and runs one
exchange at a time on each connection, ``response_waiter`` awaits an exchange that reports to
callbacks, and ``concurrency_limit`` limits the exchanges per endpoint."""
