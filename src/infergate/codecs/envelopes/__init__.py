"""Envelopes: codecs for the inference APIs of cloud platforms, MLflow and OpenAI.

No backend uses these APIs. ``sagemaker`` and ``vertex`` carry V2 REST bodies and inherit from
``v2_envelope.V2Envelope``, which passes a request to the V2 REST codec under another path. The
bodies of ``mlflow`` and Vertex AI's own bodies contain nested lists or tables (``rows``,
``frames``). The bodies of ``embeddings`` contain texts or tokens. A listener serves the envelopes
that its configuration enables. Read ``sagemaker`` first, then ``rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from infergate.codecs.base import Codec
from infergate.codecs.envelopes import vertex
from infergate.codecs.envelopes.embeddings import EmbeddingsCodec
from infergate.codecs.envelopes.mlflow import MlflowCodec
from infergate.codecs.envelopes.sagemaker import SageMakerCodec
from infergate.core.wire import HttpRequest, HttpResponse


class EnvelopeCodec(Codec[HttpRequest, HttpResponse], Protocol):
    """A codec with the paths that it serves on a shared listener."""

    @property
    def claims(self) -> tuple[str, ...]:
        """Complete paths, which begin with ``/``, and first path segments."""


ENVELOPES: Final[Mapping[str, Callable[..., EnvelopeCodec]]] = {
    "sagemaker": SageMakerCodec,
    "vertex": vertex.create,
    "mlflow": MlflowCodec,
    "embeddings": EmbeddingsCodec,
}
"""The functions that create the codecs. Their arguments are ``v2`` (the options of the V2 REST
codec) and the options in the listener's configuration."""
