"""Builds backends, plug-ins and transforms from a configuration, for the gateway and for the
migration commands.

``backends`` builds the backends of remote servers: ``engines`` selects the transports,
``endpoint_settings`` converts the endpoint options, and ``endpoint_slice_watch`` watches Kubernetes
services. ``plugins`` creates plug-ins, and ``transforms`` builds the layers that transform
tensors."""
