"""Checks that clients can send the names in routes.yaml, and that backends can accept them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from infergate.config.mistakes import Finding, KeyPath
from infergate.config.models import DeclaredModelConfig
from infergate.config.outline import Outline
from infergate.config.rewrite import RewriteConfig
from infergate.config.routes import named_rewrites
from infergate.config.tensorflow_serving import TensorFlowServingConfig
from infergate.core.name_rules import STRICT_RULE, NameRule, find_tensor_name_problem
from infergate.routing.table import is_regex

_WILDCARD: Final = re.compile(r"[*?\[\]]")
_GROUP: Final = re.compile(r"\\(?:[0-9]+|g<[^>]*>)")
_OPTION: Final = "; 'allow_slash_in_model_names: true' allows it"


def name_findings(outline: Outline) -> Iterator[Finding]:
    """Yield an error for each name that no request can contain or that no backend accepts."""
    rule = NameRule(allow_slash=outline.allows_slash)
    for path, model in outline.listener_models.items():
        yield from _model(path, model, rule)
    for index, route in outline.routes.items():
        base: KeyPath = ("routes", index)
        if not is_regex(route.model):
            yield from _model((*base, "model"), _WILDCARD.sub("x", route.model), rule)
        yield from _version((*base, "version"), route.version)
        for path, rewrite in named_rewrites(route):
            yield from _rewrite((*base, *path), rewrite, rule)
    for name, declared in outline.models.items():
        yield from _model(("models", name), name, rule)
        if declared is not None:
            yield from _declared(("models", name), declared)
    if outline.tensorflow_serving is not None:
        yield from _tensorflow_serving(outline.tensorflow_serving, rule)


def _tensorflow_serving(config: TensorFlowServingConfig, rule: NameRule) -> Iterator[Finding]:
    for name, model in config.models.items():
        base: KeyPath = ("tensorflow_serving", "models", name)
        yield from _model(base, name, rule)
        for label in model.labels:
            if problem := STRICT_RULE.find_problem(label):
                yield (*base, "labels", label), f"the version label {problem}"
        for signature, target in model.signatures.items():
            yield from _model((*base, "signatures", signature), target, rule)


def _rewrite(path: KeyPath, rewrite: RewriteConfig, rule: NameRule) -> Iterator[Finding]:
    yield from _model((*path, "model"), _GROUP.sub("x", rewrite.model), rule)
    yield from _version((*path, "version"), rewrite.version)
    for side, names in (("inputs", rewrite.inputs), ("outputs", rewrite.outputs)):
        for client_name, backend_name in names.items():
            yield from _tensor((*path, side, client_name), client_name)
            yield from _tensor((*path, side, client_name), backend_name)


def _declared(path: KeyPath, model: DeclaredModelConfig) -> Iterator[Finding]:
    for index, version in enumerate(model.versions):
        yield from _version((*path, "versions", index), version)
    for side, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        for index, tensor in enumerate(tensors):
            yield from _tensor((*path, side, index, "name"), tensor.name)


def _model(path: KeyPath, name: str, rule: NameRule) -> Iterator[Finding]:
    if problem := rule.find_problem(name):
        option = _OPTION if problem == "contains '/'" else ""
        yield path, f"the model name {problem}{option}"


def _version(path: KeyPath, name: str) -> Iterator[Finding]:
    if problem := STRICT_RULE.find_problem(name):
        yield path, f"the model version {problem}"


def _tensor(path: KeyPath, name: str) -> Iterator[Finding]:
    if problem := find_tensor_name_problem(name):
        yield path, f"the tensor name {problem}"
