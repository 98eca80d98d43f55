"""Tests inference from clients of every protocol to backends of every protocol, in one process.

The entry point is :func:`~infergate.matrix.run.run_clients`; ``infergate matrix`` prints its
results. A client of each protocol sends a fixed list of cases to a gateway, which sends them in
each backend protocol to a second gateway. The models of the second gateway record the requests.
Each request is compared with the request that the embedded backend received from the same client,
to separate the limits of the client's protocol from the limits of the backend's protocol.

Read ``cases``, ``client_kinds`` and ``recording_backend`` first, then ``gateways``, ``run``,
``findings`` and ``table``.
"""
