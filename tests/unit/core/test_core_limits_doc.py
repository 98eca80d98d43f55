"""docs/limits.md tells every limit, and its real default."""

import dataclasses
import re
from pathlib import Path

import pytest

from infergate.access import credentials, jwks, rates, tokens
from infergate.backends import descriptions as backend_descriptions
from infergate.backends.builtin import accumulate
from infergate.codecs.graphpipe import config_text, metadata, reading
from infergate.codecs.protos import plain, scan
from infergate.codecs.trtis import grpc_infer, status, text
from infergate.codecs.v2_grpc import codec as v2_codec
from infergate.codecs.v2_grpc import descriptions, heads, parts
from infergate.codecs.v2_grpc import tensors as rpc_tensors
from infergate.codecs.v2_rest import backend as rest_backend
from infergate.codecs.v2_rest import document, tensors
from infergate.codecs.v2_rest import metadata as rest_metadata
from infergate.core import classification, inflation, names, tensor
from infergate.core.limits import DEFAULT_LIMITS, ELEMENTS_ON_LOOP, KIB, MIB, Limits
from infergate.gateway import gateway, mirror, regions, streaming
from infergate.observe.metrics import Metrics
from infergate.routing import latency
from infergate.runtime import doors
from infergate.runtime.aside import pool, shared
from infergate.transport import frames, guard, h1_server, rooms, timer
from infergate.transport.h1 import head
from infergate.transport.h2 import bounds

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = {
    name: float(number) * {"MiB": MIB, "KiB": KIB}.get(unit, 1)
    for name, number, unit in re.findall(r"^\| `([\w.]+)` \| (\d+) ?(\w*)", PAGE, re.MULTILINE)
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Limits)])
def test_each_limit_has_a_row_with_its_default(field: str) -> None:
    assert ROWS[field] == getattr(DEFAULT_LIMITS, field)


def test_each_limit_tells_where_it_holds_and_what_tells_of_it() -> None:
    section = PAGE.partition("## What holds where")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE))
    assert list(rows) == [f.name for f in dataclasses.fields(Limits)]
    assert all(len(row.split("|")) == 5 for row in rows.values())
    named = {name for row in rows.values() for name in re.findall(r"infergate_\w+", row)}
    exported = "\n".join(f"{each.name}\n{each.name}_total" for each in Metrics().registry.collect())
    assert named <= set(exported.splitlines())


def test_bounds_that_are_not_configured() -> None:
    assert {name: bound for name, bound in ROWS.items() if "." in name} == {
        "core.tensor.MOST_BYTES_ELEMENTS": tensor.MOST_BYTES_ELEMENTS,
        "core.limits.ELEMENTS_ON_LOOP": ELEMENTS_ON_LOOP,
        "codecs.protos.scan.FIELDS_ON_LOOP": scan.FIELDS_ON_LOOP,
        "codecs.v2_grpc.tensors.TYPED_ON_LOOP": rpc_tensors.TYPED_ON_LOOP,
        "codecs.protos.scan.TOLD_ON_LOOP": scan.TOLD_ON_LOOP,
        "codecs.v2_rest.document.SLOW_ON_LOOP": document.SLOW_ON_LOOP,
        "codecs.v2_rest.document.NESTED_ON_LOOP": document.NESTED_ON_LOOP,
        "codecs.v2_rest.tensors.TENSORS_ON_LOOP": tensors.TENSORS_ON_LOOP,
        "codecs.trtis.text.LONGEST_ON_LOOP": text.LONGEST_ON_LOOP,
        "gateway.gateway.CAST_ON_LOOP": gateway.CAST_ON_LOOP,
        "gateway.gateway.CLASSES_ON_LOOP": gateway.CLASSES_ON_LOOP,
        "core.names.MAX_NAME_BYTES": names.MAX_NAME_BYTES,
        "codecs.protos.scan.MAX_NAME": scan.MAX_NAME,
        "codecs.protos.plain.MAX_VALUES": plain.MAX_VALUES,
        "codecs.v2_grpc.codec.MOST_ANSWER": v2_codec.MOST_ANSWER,
        "codecs.v2_grpc.codec.MOST_ANSWER_FIELDS": v2_codec.MOST_ANSWER_FIELDS,
        "codecs.trtis.grpc_infer.MOST_FIELDS": grpc_infer.MOST_FIELDS,
        "codecs.trtis.grpc_infer.MOST_HEAD": grpc_infer.MOST_HEAD,
        "codecs.trtis.grpc_infer.MOST_ANSWER_FIELDS": grpc_infer.MOST_ANSWER_FIELDS,
        "codecs.trtis.status.MOST_BYTES": status.MOST_BYTES,
        "codecs.trtis.status.MOST_FIELDS": status.MOST_FIELDS,
        "codecs.v2_rest.backend.MAX_BYTES": rest_backend.MAX_BYTES,
        "codecs.v2_rest.backend.MAX_VALUES": rest_backend.MAX_VALUES,
        "codecs.v2_rest.document.MAX_NAMES": document.MAX_NAMES,
        "codecs.graphpipe.metadata.MAX_JSON": metadata.MAX_JSON,
        "codecs.graphpipe.metadata.MOST": metadata.MOST,
        "codecs.v2_rest.metadata.LONGEST_HEALTH": rest_metadata.LONGEST_HEALTH,
        "codecs.v2_grpc.descriptions.MOST_FIELDS": descriptions.MOST_FIELDS,
        "codecs.v2_grpc.descriptions.MOST_HEAD": descriptions.MOST_HEAD,
        "codecs.v2_grpc.heads.LONGEST": heads.LONGEST,
        "codecs.v2_grpc.heads.HEAVIEST": heads.HEAVIEST,
        "codecs.v2_grpc.parts.MOST": parts.MOST,
        "codecs.trtis.text.REMEMBERED": text.REMEMBERED,
        "transport.frames.AHEAD": frames.AHEAD,
        "transport.h1_server.AHEAD": h1_server.AHEAD,
        "transport.h1_server.PATIENCE": h1_server.PATIENCE,
        "transport.h1.head.REMEMBERED": head.REMEMBERED,
        "transport.rooms.MOST": rooms.MOST,
        "runtime.aside.shared.MOST": shared.MOST,
        "runtime.aside.pool.PATIENCE": pool.PATIENCE,
        "gateway.mirror.MOST_BYTES": mirror.MOST_BYTES,
        "transport.timer.MINIMUM_RATE": timer.MINIMUM_RATE,
        "runtime.doors.ADMIN_CONNECTIONS": doors.ADMIN_CONNECTIONS,
        "transport.guard.MOST_STREAMS": guard.MOST_STREAMS,
        "transport.h2.bounds.STREAM_WINDOW": bounds.STREAM_WINDOW,
        "transport.h2.bounds.EARLY_STREAMS": bounds.EARLY_STREAMS,
        "transport.h2.bounds.FRAME": bounds.FRAME,
        "gateway.regions.LONGEST_NAME": regions.LONGEST_NAME,
        "routing.latency.GENERATION": latency.GENERATION,
        "gateway.streaming.AT_ONCE": streaming.AT_ONCE,
        "codecs.v2_rest.document.DEEPEST": document.DEEPEST,
        "codecs.v2_rest.document.MOST_NESTED": document.MOST_NESTED,
        "codecs.v2_rest.tensors.MOST_PARAMETERS": tensors.MOST_PARAMETERS,
        "codecs.v2_rest.document.MOST_TEXT": document.MOST_TEXT,
        "core.inflation.MAX_MEMBERS": inflation.MAX_MEMBERS,
        "codecs.graphpipe.reading.MOST_TIMES": reading.MOST_TIMES,
        "codecs.graphpipe.config_text.LONGEST": config_text.LONGEST,
        "codecs.graphpipe.config_text.DEEPEST": config_text.DEEPEST,
        "core.classification.MOST_CLASSES": classification.MOST_CLASSES,
        "access.credentials.LONGEST": credentials.LONGEST,
        "access.tokens.REMEMBERED": tokens.REMEMBERED,
        "access.rates.MOST": rates.MOST,
        "access.jwks.PAUSE": jwks.PAUSE,
        "backends.descriptions.MOST": backend_descriptions.MOST,
        "backends.builtin.accumulate.MOST_SEQUENCES": accumulate.MOST_SEQUENCES,
        "backends.builtin.accumulate.IDLE_SECONDS": accumulate.IDLE_SECONDS,
        "backends.builtin.accumulate.LONGEST_ID": accumulate.LONGEST_ID,
    }


def test_no_row_tells_of_a_limit_there_is_not() -> None:
    fields = {f.name for f in dataclasses.fields(Limits)}
    assert {name for name in ROWS if "." not in name} == fields
