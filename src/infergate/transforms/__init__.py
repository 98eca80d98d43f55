"""The transforms of a route: steps that change the tensors of requests and responses, and change
the model's metadata accordingly. The package has no I/O, no clock and no asyncio.

``step`` is the contract of a step, and ``route_transforms`` applies a route's steps. ``numeric``,
``scores``, ``structure``, ``text`` and ``images`` contain the steps. ``images`` imports Pillow when
it decodes the first image."""
