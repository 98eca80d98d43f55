"""The exact response cache: keys of inferences, cached responses as bytes, and the stores that hold
them. ``gateway.cached_route`` uses it for the inferences of a route.

Read ``keys``, then ``entries``, then ``store`` (the contract) with ``local_store`` for one process
and ``shared_store`` for several, then ``redis_store``.
"""
