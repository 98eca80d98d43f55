"""Reads and writes the messages of the system and CUDA shared memory extensions."""

from __future__ import annotations

import base64
from typing import Any

from infergate.codecs.json_tensors.json_data import decode_element
from infergate.codecs.json_tensors.json_document import (
    Node,
    check_json_size,
    json_kind,
    parse_json,
    read_members,
    read_string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.paths import V2PathMatch, memory_path
from infergate.codecs.v2_rest.tensors import encode_json
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    Operation,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryUnregisterRequest,
)
from infergate.core.wire import HttpRequest, HttpResponse

# ---- from clients


def read_unregister(match: V2PathMatch, body: bytes, limits: Limits) -> Operation:
    """Parse a request to unregister a region. The body is ignored."""
    del body, limits
    return SharedMemoryUnregisterRequest(match.region, cuda=match.cuda)


def read_register(match: V2PathMatch, body: bytes, limits: Limits) -> Operation:
    """Parse a request to register a region. Raises BAD_REQUEST and TOO_LARGE."""
    check_json_size(len(body), limits.json)
    if not body:
        raise bad_request("the body is empty")
    if not match.cuda:
        fields = read_members(parse_json(body), "the body", ("key", "offset", "byte_size"))
        return SharedMemoryRegisterRequest(
            match.region,
            _read_text(fields, "key"),
            _read_number(fields, "offset", 0),
            _read_number(fields, "byte_size"),
        )
    fields = read_members(parse_json(body), "the body", ("raw_handle", "device_id", "byte_size"))
    return SharedMemoryRegisterRequest(
        match.region,
        size=_read_number(fields, "byte_size"),
        device=_read_number(fields, "device_id"),
        handle=_read_handle(fields),
    )


def write_status(response: SharedMemoryStatus) -> HttpResponse:
    """Write the list of regions."""
    regions = [_write_region(region) for region in response.regions]
    return HttpResponse(200, {"content-type": JSON_TYPE}, [encode_json(regions)])


def _write_region(region: SharedMemoryRegion) -> dict[str, Any]:
    if region.device is not None:
        return {"name": region.name, "device_id": region.device, "byte_size": region.size}
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.size,
    }


def _read_text(members: dict[str, Node], key: str, parent: str = "") -> str:
    if key not in members:
        raise bad_request(f"{parent}{key} is missing")
    return read_string(members[key], f"{parent}{key}")


def _read_number(members: dict[str, Node], key: str, default: int | None = None) -> int:
    value = members.get(key, default)
    if value is None:
        raise bad_request(f"{key} is missing")
    if type(value) is not int or not 0 <= value < 2**64:
        actual = value if type(value) is int else json_kind(value)
        raise bad_request(f"{key} must be an integer from 0 to 2^64-1, not {actual}")
    return value


def _read_handle(fields: dict[str, Node]) -> bytes:
    if "raw_handle" not in fields:
        raise bad_request("raw_handle is missing")
    members = read_members(fields["raw_handle"], "raw_handle", ("b64",))
    handle = decode_element(_read_text(members, "b64", "raw_handle."))
    if handle is None:
        raise bad_request("raw_handle.b64 is not base64")
    return handle


# ---- to backends


def write_request(
    operation: SharedMemoryRegisterRequest | SharedMemoryUnregisterRequest,
) -> HttpRequest:
    """Write the request. Raises UNSUPPORTED for a name that cannot be part of a path."""
    match operation:
        case SharedMemoryUnregisterRequest(name, cuda):
            return HttpRequest("POST", memory_path(name, "unregister", cuda=bool(cuda)))
        case SharedMemoryRegisterRequest(name, device=None):
            fields: dict[str, Any] = {
                "key": operation.key,
                "offset": operation.offset,
                "byte_size": operation.size,
            }
        case SharedMemoryRegisterRequest(name):
            fields = {
                "raw_handle": {"b64": base64.b64encode(operation.handle).decode()},
                "device_id": operation.device,
                "byte_size": operation.size,
            }
    path = memory_path(name, "register", cuda=operation.device is not None)
    return HttpRequest("POST", path, "", {"content-type": JSON_TYPE}, [encode_json(fields)])
