"""``infergate replay``: sends recorded inferences to a server again, and compares the responses.

``entries`` reads recording files in chronological order, ``pace`` decides when an inference is due,
``target`` has the gateways that send inferences, ``replayer`` runs the replay, and ``result`` holds
the result."""
