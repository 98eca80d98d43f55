"""The transforms of a route: steps that change the tensors of requests and responses, and that
change the model's metadata to match. Pure: no I/O, no clock, no asyncio.

``step`` is the contract of a step, and ``route_transforms`` applies a route's steps. ``numeric``,
``scores``, ``structure``, ``text`` and ``images`` hold the steps. ``images`` imports Pillow when it
decodes the first image."""
