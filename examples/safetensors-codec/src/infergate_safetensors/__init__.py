"""Inferences as safetensors files over HTTP. ``codec`` has the messages, ``tensor_file`` the file
format."""

from infergate_safetensors.codec import PLUGIN

__all__ = ["PLUGIN"]
