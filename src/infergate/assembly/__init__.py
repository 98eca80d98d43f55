"""Builds backends from a configuration, for the gateway and for the commands of a migration.

``backends`` is the entry point; ``engines`` selects the transports, and ``endpoint_settings``
converts the endpoint options."""
