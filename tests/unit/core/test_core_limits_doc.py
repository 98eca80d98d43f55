"""docs/limits.md lists every limit with its default."""

import dataclasses
import re
from pathlib import Path

import pytest

from infergate.access import credentials, jwks, rate_limits, tokens
from infergate.backends import metadata_cache as backend_descriptions
from infergate.backends.builtin import accumulate
from infergate.codecs.graphpipe import config_text, flatbuffer_reader, metadata
from infergate.codecs.protos import plain_values, wire_scanner
from infergate.codecs.protos.wire_scanner import (
    MAX_METADATA_FIELDS_ON_LOOP,
    MAX_NESTED_FIELDS_ON_LOOP,
)
from infergate.codecs.trtis import grpc_infer, server_status, text_format
from infergate.codecs.v2_grpc import codec as v2_codec
from infergate.codecs.v2_grpc import head_cache, head_limits, head_parts
from infergate.codecs.v2_grpc import tensors as rpc_tensors
from infergate.codecs.v2_rest import backend as rest_backend
from infergate.codecs.v2_rest import json_document, tensors
from infergate.codecs.v2_rest import metadata as rest_metadata
from infergate.core import classification, inflation, name_rules, tensor
from infergate.core.limits import DEFAULT_LIMITS, KIB, MAX_ELEMENTS_ON_LOOP, MIB, Limits
from infergate.gateway import datatypes, mirror, shared_memory_region, streaming
from infergate.observe.metrics import Metrics
from infergate.routing import latency
from infergate.runtime import connection_gates
from infergate.runtime.offload import pool, shared_buffer
from infergate.transport.framed import frame_reader
from infergate.transport.http1 import request_head, server
from infergate.transport.http2 import limits
from infergate.transport.net import buffer_pool, timer
from infergate.transport.server import admission

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = {
    name: float(number) * {"MiB": MIB, "KiB": KIB}.get(unit, 1)
    for name, number, unit in re.findall(r"^\| `([\w.]+)` \| (\d+) ?(\w*)", PAGE, re.MULTILINE)
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Limits)])
def test_each_limit_has_a_row_with_its_default(field: str) -> None:
    assert ROWS[field] == getattr(DEFAULT_LIMITS, field)


def test_each_limit_names_its_scope_and_its_metric() -> None:
    section = PAGE.partition("## What holds where")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE))
    assert list(rows) == [f.name for f in dataclasses.fields(Limits)]
    assert all(len(row.split("|")) == 5 for row in rows.values())
    named = {name for row in rows.values() for name in re.findall(r"infergate_\w+", row)}
    exported = "\n".join(f"{each.name}\n{each.name}_total" for each in Metrics().registry.collect())
    assert named <= set(exported.splitlines())


def test_bounds_that_are_not_configured() -> None:
    assert {name: bound for name, bound in ROWS.items() if "." in name} == {
        "core.tensor.MAX_BYTES_ELEMENTS": tensor.MAX_BYTES_ELEMENTS,
        "core.limits.MAX_ELEMENTS_ON_LOOP": MAX_ELEMENTS_ON_LOOP,
        "codecs.protos.wire_scanner.MAX_NESTED_FIELDS_ON_LOOP": MAX_NESTED_FIELDS_ON_LOOP,
        "codecs.v2_grpc.tensors.TYPED_ON_LOOP": rpc_tensors.TYPED_ON_LOOP,
        "codecs.protos.wire_scanner.MAX_METADATA_FIELDS_ON_LOOP": MAX_METADATA_FIELDS_ON_LOOP,
        "codecs.v2_rest.json_document.MAX_SLOW_BYTES_ON_LOOP": json_document.MAX_SLOW_BYTES_ON_LOOP,
        "codecs.v2_rest.json_document.MAX_CONTAINERS_ON_LOOP": json_document.MAX_CONTAINERS_ON_LOOP,
        "codecs.v2_rest.tensors.MAX_TENSORS_ON_LOOP": tensors.MAX_TENSORS_ON_LOOP,
        "codecs.trtis.text_format.MAX_ON_LOOP": text_format.MAX_ON_LOOP,
        "gateway.datatypes.MAX_INLINE_CAST_BYTES": datatypes.MAX_INLINE_CAST_BYTES,
        "gateway.datatypes.MAX_INLINE_CLASSIFY_BYTES": datatypes.MAX_INLINE_CLASSIFY_BYTES,
        "core.name_rules.MAX_NAME_BYTES": name_rules.MAX_NAME_BYTES,
        "codecs.protos.wire_scanner.MAX_NAME_BYTES": wire_scanner.MAX_NAME_BYTES,
        "codecs.protos.plain_values.MAX_VALUES": plain_values.MAX_VALUES,
        "codecs.v2_grpc.codec.MAX_RESPONSE_BYTES": v2_codec.MAX_RESPONSE_BYTES,
        "codecs.v2_grpc.codec.MAX_RESPONSE_FIELDS": v2_codec.MAX_RESPONSE_FIELDS,
        "codecs.trtis.grpc_infer.MAX_REQUEST_FIELDS": grpc_infer.MAX_REQUEST_FIELDS,
        "codecs.trtis.grpc_infer.MAX_HEAD_BYTES": grpc_infer.MAX_HEAD_BYTES,
        "codecs.trtis.grpc_infer.MAX_RESPONSE_FIELDS": grpc_infer.MAX_RESPONSE_FIELDS,
        "codecs.trtis.server_status.MAX_BYTES": server_status.MAX_BYTES,
        "codecs.trtis.server_status.MAX_FIELDS": server_status.MAX_FIELDS,
        "codecs.v2_rest.backend.MAX_BYTES": rest_backend.MAX_BYTES,
        "codecs.v2_rest.backend.MAX_VALUES": rest_backend.MAX_VALUES,
        "codecs.v2_rest.json_document.MAX_MEMBERS": json_document.MAX_MEMBERS,
        "codecs.graphpipe.metadata.MAX_JSON_BYTES": metadata.MAX_JSON_BYTES,
        "codecs.graphpipe.metadata.MAX_TENSORS": metadata.MAX_TENSORS,
        "codecs.v2_rest.metadata.MAX_HEALTH_BYTES": rest_metadata.MAX_HEALTH_BYTES,
        "codecs.v2_grpc.head_limits.MAX_FIELDS": head_limits.MAX_FIELDS,
        "codecs.v2_grpc.head_limits.MAX_HEAD_BYTES": head_limits.MAX_HEAD_BYTES,
        "codecs.v2_grpc.head_cache.MAX_CACHED_HEAD": head_cache.MAX_CACHED_HEAD,
        "codecs.v2_grpc.head_cache.MAX_WEIGHT": head_cache.MAX_WEIGHT,
        "codecs.v2_grpc.head_parts.MAX_CACHED_PARTS": head_parts.MAX_CACHED_PARTS,
        "codecs.trtis.text_format.CACHE_SIZE": text_format.CACHE_SIZE,
        "transport.framed.frame_reader.MAX_READ_AHEAD": frame_reader.MAX_READ_AHEAD,
        "transport.http1.server.MAX_READ_AHEAD": server.MAX_READ_AHEAD,
        "transport.http1.server.BODY_WATERMARK": server.BODY_WATERMARK,
        "transport.http1.request_head.MAX_CACHE_BYTES": request_head.MAX_CACHE_BYTES,
        "transport.net.buffer_pool.MAX_UNUSED_BYTES": buffer_pool.MAX_UNUSED_BYTES,
        "runtime.offload.shared_buffer.MAX_KEPT_BYTES": shared_buffer.MAX_KEPT_BYTES,
        "runtime.offload.pool.DEFAULT_TIMEOUT_SECONDS": pool.DEFAULT_TIMEOUT_SECONDS,
        "gateway.mirror.MAX_BYTES": mirror.MAX_BYTES,
        "transport.net.timer.MIN_BODY_RATE": timer.MIN_BODY_RATE,
        "runtime.connection_gates.MAX_ADMIN_CONNECTIONS": connection_gates.MAX_ADMIN_CONNECTIONS,
        "transport.server.admission.MAX_STREAMS": admission.MAX_STREAMS,
        "transport.http2.limits.STREAM_WINDOW": limits.STREAM_WINDOW,
        "transport.http2.limits.EARLY_STREAMS": limits.EARLY_STREAMS,
        "transport.http2.limits.MAX_FRAME": limits.MAX_FRAME,
        "gateway.shared_memory_region.MAX_NAME_CHARS": shared_memory_region.MAX_NAME_CHARS,
        "routing.latency.GENERATION_SIZE": latency.GENERATION_SIZE,
        "gateway.streaming.MAX_CONCURRENT_REQUESTS": streaming.MAX_CONCURRENT_REQUESTS,
        "codecs.v2_rest.json_document.MAX_DEPTH": json_document.MAX_DEPTH,
        "codecs.v2_rest.json_document.MAX_CONTAINERS": json_document.MAX_CONTAINERS,
        "codecs.v2_rest.tensors.MAX_PARAMETER_VALUES": tensors.MAX_PARAMETER_VALUES,
        "codecs.v2_rest.json_document.MAX_TEXT_CHARACTERS": json_document.MAX_TEXT_CHARACTERS,
        "core.inflation.MAX_MEMBERS": inflation.MAX_MEMBERS,
        "codecs.graphpipe.flatbuffer_reader.MAX_EXPANSION": flatbuffer_reader.MAX_EXPANSION,
        "codecs.graphpipe.config_text.MAX_CONFIG_BYTES": config_text.MAX_CONFIG_BYTES,
        "codecs.graphpipe.config_text.MAX_DEPTH": config_text.MAX_DEPTH,
        "core.classification.MAX_CLASSES": classification.MAX_CLASSES,
        "access.credentials.MAX_CREDENTIAL_CHARS": credentials.MAX_CREDENTIAL_CHARS,
        "access.tokens.MAX_CACHED_TOKENS": tokens.MAX_CACHED_TOKENS,
        "access.rate_limits.MAX_BUCKETS": rate_limits.MAX_BUCKETS,
        "access.jwks.FETCH_INTERVAL_SECONDS": jwks.FETCH_INTERVAL_SECONDS,
        "backends.metadata_cache.MAX_ENTRIES": backend_descriptions.MAX_ENTRIES,
        "backends.builtin.accumulate.MAX_SEQUENCES": accumulate.MAX_SEQUENCES,
        "backends.builtin.accumulate.IDLE_SECONDS": accumulate.IDLE_SECONDS,
        "backends.builtin.accumulate.MAX_ID_CHARS": accumulate.MAX_ID_CHARS,
    }


def test_every_row_describes_an_existing_limit() -> None:
    fields = {f.name for f in dataclasses.fields(Limits)}
    assert {name for name in ROWS if "." not in name} == fields
