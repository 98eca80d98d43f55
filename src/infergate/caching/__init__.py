"""The response cache for identical inferences: the keys of inferences, the format of cached
responses, and the stores of cached responses. ``gateway.cached_route`` uses this package for the
inferences of a route.

Read ``keys``, then ``entries``, then ``store`` (the contract) with ``local_store`` for one process
and ``shared_store`` for several processes, then ``redis_store``.
"""
