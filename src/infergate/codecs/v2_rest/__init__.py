"""V2 (Open Inference Protocol) over REST, with the binary tensor data extension."""

from infergate.codecs.v2_rest.codec import PLUGIN, V2Rest

__all__ = ["PLUGIN", "V2Rest"]
