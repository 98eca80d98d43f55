"""The operations that every frontend calls, and the frontends themselves.

Entry points: ``Gateway.perform`` and ``Gateway.infer`` carry out a protocol-neutral operation;
``Frontend.respond`` answers one request in a client's protocol. Read ``gateway`` (routing to
backends), ``frontend`` (parse, route, answer), ``dispatch`` (which frontend a request belongs to),
then what they use: ``route_binding`` and ``traffic_split`` (routes), ``rename``, ``cast`` and
``classification`` (differences between client and backend), ``codec_offload`` (long messages),
``streaming`` and ``http_stream`` (streams), ``shared_memory``, ``model_catalogue`` (lists and
statuses), ``server_control`` (operations that change servers) and ``authorized`` (access rules).
"""
