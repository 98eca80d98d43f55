"""``infergate replay``: sends recorded inferences to a server again, and compares the responses.

``entries`` reads recording files in the order of time, ``pace`` decides when an inference is due,
``target`` holds the gateways that send, and ``replayer`` runs the replay. ``result`` is what it
returns."""
