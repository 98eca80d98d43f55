"""The running gateway: assembly from a configuration, startup, signals, reload, drain, and the
admin listener.

The entry point is ``serve.serve``. Read ``assemble`` (builds backends, gateway and listeners from a
configuration), ``running`` (``RunningGateway``, whose listeners stay open while configurations
change), ``reload`` with ``file_watch``, and ``admin``. ``offload/`` runs long codec jobs in helper
processes, ``workers/`` runs several processes as one gateway, and ``console/`` is the web console
on the admin listener."""
