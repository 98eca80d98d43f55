"""The running gateway: assembly from a configuration, startup, signals, reload, drain, and the
admin listener.

Entry point: ``serve.serve``. Reading order: ``assemble`` (configuration to backends, gateway and
listeners), ``running`` (``RunningGateway``: listeners that stay while configurations change),
``reload`` and ``file_watch``, ``admin``. ``offload/`` runs long codec work in helper processes,
``workers/`` runs several processes as one gateway, ``console/`` is the web console on the admin
listener.
"""
