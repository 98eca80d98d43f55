"""Builds backends from a configuration, for the gateway and for the migration commands.

``backends`` is the entry point; ``engines`` selects the transports, and ``endpoint_settings``
converts the endpoint options."""
