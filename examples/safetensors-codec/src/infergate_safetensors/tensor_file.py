"""Reads and writes safetensors files: the length of the header as a little-endian uint64, the
header as JSON, and the data (https://github.com/huggingface/safetensors, "Format").

``read`` raises BAD_REQUEST for an invalid file, or TOO_LARGE for a header that is too long. The
tensors are views of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from infergate.plugins import (
    Buffer,
    Datatype,
    GatewayError,
    Kind,
    Limits,
    Tensor,
    bad_request,
    check_data,
    check_shape,
)

DTYPES = {
    Datatype.BOOL: "BOOL",
    Datatype.UINT8: "U8",
    Datatype.UINT16: "U16",
    Datatype.UINT32: "U32",
    Datatype.UINT64: "U64",
    Datatype.INT8: "I8",
    Datatype.INT16: "I16",
    Datatype.INT32: "I32",
    Datatype.INT64: "I64",
    Datatype.FP16: "F16",
    Datatype.BF16: "BF16",
    Datatype.FP32: "F32",
    Datatype.FP64: "F64",
}
_DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH_BYTES = 8


def write(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> list[Buffer]:
    """Return a file as buffers. Raises UNSUPPORTED for BYTES tensors, which the format lacks."""
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    position = 0
    for tensor in tensors:
        if tensor.datatype not in DTYPES:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"tensor '{tensor.name}': safetensors has no datatype {tensor.datatype.value}",
            )
        if tensor.name == _METADATA or tensor.name in header:
            raise GatewayError(Kind.UNSUPPORTED, f"a tensor cannot be named '{tensor.name}'")
        end = position + len(tensor.data)
        header[tensor.name] = {
            "dtype": DTYPES[tensor.datatype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned to 8 bytes
    return [
        len(text).to_bytes(_LENGTH_BYTES, "little") + text,
        *(tensor.data for tensor in tensors),
    ]


def read(file: Buffer, limits: Limits) -> tuple[tuple[Tensor, ...], dict[str, str]]:
    """Return the tensors in the order of their data, and the metadata."""
    view = memoryview(file)
    header, data = _read_header(view, limits)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise bad_request(f"{_METADATA} is not a mapping of texts")
    if len(header) > limits.tensors:
        raise bad_request(
            f"the file has {len(header)} tensors; the limit is {limits.tensors}", limit="tensors"
        )
    tensors, end = [], 0
    entries = [_read_entry(name, entry) for name, entry in header.items()]
    for name, datatype, shape, (begin, stop) in sorted(entries, key=lambda entry: entry[3]):
        if begin != end or stop < begin or stop > len(data):
            raise bad_request(
                f"tensor '{name}': data_offsets overlap, leave a gap, or are too large"
            )
        end = stop
        checked = check_shape(name, shape, limits)
        check_data(name, datatype, checked, data[begin:stop])
        tensors.append(Tensor(name, datatype, checked, data[begin:stop]))
    if end != len(data):
        raise bad_request(f"{len(data) - end} bytes follow the data of the tensors")
    return tuple(tensors), metadata


def _read_header(file: memoryview, limits: Limits) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(file[:_LENGTH_BYTES], "little")
    if len(file) < _LENGTH_BYTES or size > len(file) - _LENGTH_BYTES:
        raise bad_request("the file ends before its header")
    if size > limits.json:
        raise GatewayError(
            Kind.TOO_LARGE, f"the header has {size} bytes; the limit is {limits.json}", limit="json"
        )
    try:
        header = json.loads(bytes(file[_LENGTH_BYTES : _LENGTH_BYTES + size]))
    except (ValueError, RecursionError):  # deeply nested JSON
        raise bad_request("the header is not JSON") from None
    if not isinstance(header, dict):
        raise bad_request("the header is not a JSON object")
    return header, file[_LENGTH_BYTES + size :]


def _read_entry(name: str, entry: Any) -> tuple[str, Datatype, list[Any], tuple[int, int]]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            if dtype not in _DATATYPES:
                raise bad_request(f"tensor '{name}': unknown dtype '{dtype[:20]}'")
            return name, _DATATYPES[dtype], shape, (begin, end)
    raise bad_request(f"tensor '{name}': expected dtype, shape and data_offsets")
