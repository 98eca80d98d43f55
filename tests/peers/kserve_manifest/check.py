"""``python check.py``: check an InferenceService (JSON on standard input) against KServe's types.

The models of KServe's SDK and of Kubernetes' client are generated from the same Go types as the
CRD's schema. Each unknown field, wrong type, and missing required field is
printed on a separate line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import kserve
import kserve.models
import kubernetes.client.models

_SIMPLE = {"str": str, "int": int, "float": (int, float), "bool": bool}
_GENERIC = re.compile(r"([lL]ist\[|[dD]ict[(\[]str, )(.+)[\])]")


def check(value: Any, kind: str, path: str) -> Iterator[str]:
    """Yield the faults of ``value``. ``kind`` is the expected type, as the models name it."""
    generic = _GENERIC.fullmatch(kind)
    if generic:
        expected = list if generic[1].lower() == "list[" else dict
        if not isinstance(value, expected):
            yield f"{path}: not a {expected.__name__}"
            return
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            yield from check(item, generic[2], f"{path}[{key}]")
    elif kind in _SIMPLE:
        if not isinstance(value, _SIMPLE[kind]) or (kind != "bool" and isinstance(value, bool)):
            yield f"{path}: not of the type {kind}"
    elif kind in {"object", "datetime"}:
        return
    elif kind in {"ResourceQuantity", "IntOrString", "ApimachineryPkgApiResourceQuantity"}:
        if not isinstance(value, (int, str)):
            yield f"{path}: not of the type {kind}"
    else:
        yield from _check_model(value, kind, path)


def _check_model(value: Any, kind: str, path: str) -> Iterator[str]:
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client.models, kind)
    if not isinstance(value, dict):
        yield f"{path}: not an object"
        return
    attributes = {key: name for name, key in model.attribute_map.items()}
    for key, item in value.items():
        if key not in attributes:
            yield f"{path}.{key}: unknown field of {kind}"
        else:
            yield from check(item, model.openapi_types[attributes[key]], f"{path}.{key}")
    for key in _missing(model, value):
        yield f"{path}.{key}: missing"


def _missing(model: Any, value: dict[str, Any]) -> Iterator[str]:
    """Yield the required fields that are missing in ``value``. The models of Kubernetes' client are
    pydantic models; the models of KServe's SDK reject None for a required field."""
    if hasattr(model, "model_fields"):
        fields = model.model_fields.items()
        keys = {model.attribute_map[name] for name, field in fields if field.is_required()}
        yield from sorted(keys - value.keys())
        return
    for name, key in model.attribute_map.items():
        if key not in value:
            instance = object.__new__(model)
            instance.local_vars_configuration = kserve.Configuration()
            try:
                setattr(instance, name, None)
            except ValueError:
                yield key


if __name__ == "__main__":
    sys.stdout.writelines(
        f"{fault}\n" for fault in check(json.load(sys.stdin), "V1beta1InferenceService", "")
    )
