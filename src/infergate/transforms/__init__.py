"""Transforms of a route: steps that change the tensors of requests and responses, and the model's
metadata in the same way. Pure: no I/O, no clock, no asyncio.

``step`` is the contract of a step, and ``route_transforms`` applies a route's steps. ``numeric``,
``scores``, ``structure``, ``text`` and ``images`` hold the steps. ``images`` imports Pillow when it
decodes the first image."""
