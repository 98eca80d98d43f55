"""The gateway's operations, and the frontends that call them.

There are two entry points: ``InferenceGateway`` has the protocol-neutral operations, and
``Frontend.respond`` serves one request in a client's protocol. First read ``gateway`` (routing to
backends), ``route_plan`` (the steps of a route's inferences), ``frontend`` with its two pipelines
``translation`` and ``pass_through``, and ``dispatch`` (the choice of the frontend). Then read
``route_binding`` and ``traffic_split`` (routes), ``rename``, ``cast`` and ``classification``
(differences between client and backend), ``codec_offload`` (long messages), ``streaming`` and
``http_stream`` (streams), ``shared_memory``, ``model_catalogue`` (lists and statuses),
``server_control`` (operations that change servers), ``authorized`` (access rules) and ``steps``
(tracing)."""
