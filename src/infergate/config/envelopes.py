"""The section of routes.yaml on the APIs of cloud platforms, of MLflow and of OpenAI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from infergate.config.fields import Name, Text
from infergate.config.section import Section

HttpPath = Annotated[Name, Field(pattern=r"^/[^?#\s]{0,1023}$")]
_V2: Final = "/v2"


class SageMakerConfig(Section):
    """Amazon SageMaker's container API: `/ping`, `/invocations`, and `/models` for several models.

    Example: `{model: resnet}`."""

    model: Text = Field(
        default="",
        description="The model of `/invocations`, which is matched against `routes`. By default, "
        "only `/models/<name>/invoke` accepts inferences. Example: "
        '`"${SAGEMAKER_TRITON_DEFAULT_MODEL_NAME}"`.',
    )
    inference: Literal["infer", "generate", "generate_stream"] = Field(
        default="infer",
        description="The format of `/invocations`: `infer` for V2 REST inferences, or `generate` "
        "and `generate_stream` for requests of Triton's generate extension. In Triton, the "
        "environment variable SAGEMAKER_TRITON_INFERENCE_TYPE selects the format.",
    )
    ping: Literal["ready", "live"] = Field(
        default="ready",
        description="The state that `/ping` reports: `ready` for the gateway's readiness, as "
        "defined by `readiness`, or `live` for its liveness. In Triton, the environment variable "
        "SAGEMAKER_TRITON_PING_MODE selects the state.",
    )


class VertexConfig(Section):
    """Vertex AI's container API. The platform sets the environment variables below and
    AIP_HTTP_PORT (the port).

    Example: `{model: resnet, health_route: "${AIP_HEALTH_ROUTE}", predict_route:
    "${AIP_PREDICT_ROUTE}"}`."""

    model: Name = Field(
        description="The model of requests without X-Vertex-Ai-Triton-Redirect, which is matched "
        "against `routes`."
    )
    health_route: HttpPath = Field(
        description='The path of readiness checks. Example: `"${AIP_HEALTH_ROUTE}"`.'
    )
    predict_route: HttpPath = Field(
        description='The path of predictions. Example: `"${AIP_PREDICT_ROUTE}"`.'
    )
    body: Literal["v2", "instances"] = Field(
        default="v2",
        description="The format of predictions: `v2` for V2 REST, as in Triton, or `instances` for "
        "Vertex AI's own format.",
    )

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        if self.health_route == self.predict_route:
            raise ValueError("health_route and predict_route are the same path")
        for route in (self.health_route, self.predict_route):
            if route == _V2 or route.startswith(f"{_V2}/"):
                raise ValueError(f"'{route}' already belongs to V2 REST")
        return self


class MlflowConfig(Section):
    """MLflow's scoring API: `/invocations`, `/ping`, `/health` and `/version`.

    Example: `{model: iris}`."""

    model: Name = Field(description="The model, which is matched against `routes`.")


class EmbeddingModelConfig(Section):
    """The names of an embedding model's tensors. Example: `{input: text, output: embedding}`."""

    input: Name = Field(
        description="The name of the input. An input for text has the datatype BYTES and the "
        "shape [N] or [N, 1]. An input for tokens has integers and the shape [N, length]."
    )
    output: Name = Field(
        description="The name of the output, which has one vector of floats for each text."
    )
    tokens: Text = Field(
        default="",
        description="The name of an output with the number of tokens of each text. Responses "
        "report the sum as `usage`. By default, `usage` is 0.",
    )


class EmbeddingsConfig(Section):
    """OpenAI's embeddings API, `POST /v1/embeddings`.

    Example: `{models: {bge-small: {input: text, output: embedding}}}`."""

    models: Annotated[dict[Name, EmbeddingModelConfig], Field(min_length=1)] = Field(
        description="Embedding models, keyed by the name that clients use. The name is matched "
        "against `routes`."
    )


class EnvelopesConfig(Section):
    """The APIs of cloud platforms, of MLflow and of OpenAI.

    Example: `{sagemaker: {model: resnet}}`."""

    sagemaker: SageMakerConfig | None = Field(
        default=None, description="Amazon SageMaker's container API. Off by default."
    )
    vertex: VertexConfig | None = Field(
        default=None, description="Vertex AI's container API. Off by default."
    )
    mlflow: MlflowConfig | None = Field(
        default=None, description="MLflow's scoring API. Off by default."
    )
    embeddings: EmbeddingsConfig | None = Field(
        default=None, description="OpenAI's embeddings API. Off by default."
    )

    def models(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the path in this section and the name of each model that clients can reach."""
        for name in ("sagemaker", "vertex", "mlflow"):
            section = getattr(self, name)
            if section is not None and section.model:
                yield (name, "model"), section.model
        if self.embeddings is not None:
            for model in self.embeddings.models:
                yield ("embeddings", "models", model), model

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        if self.sagemaker is not None and self.mlflow is not None:
            raise ValueError(
                "sagemaker and mlflow both have /ping and /invocations: use two listeners"
            )
        envelope_paths = {"/v1/embeddings"} if self.embeddings is not None else set()
        if self.sagemaker is not None or self.mlflow is not None:
            envelope_paths |= {"/ping", "/invocations"}
        if self.mlflow is not None:
            envelope_paths |= {"/health", "/version"}
        if self.vertex is not None:
            for route in (self.vertex.health_route, self.vertex.predict_route):
                if route in envelope_paths:
                    raise ValueError(f"vertex: '{route}' belongs to another envelope")
        return self
