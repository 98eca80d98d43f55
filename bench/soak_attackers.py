"""Clients of a soak that cause much work with few bytes, or break a rule at the expense of other
clients.

Each attack respects the limits on bytes. Any outcome that is not ``expected`` is a failure, unless
the attack reaches a server (``reaches_server``) that had an outage at that time. The rest of the
soak verifies that other clients get responses and that memory does not grow.
"""

import asyncio
import functools
import gzip
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from infergate.transport.http2 import frames
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder

from .soak_deployment import KEY
from .soak_faults import INFER, Target, call_headers

_PATIENCE: Final = 100.0
_UNREAD: Final = 30.0
"""Seconds until the gateway disconnects a client that does not read. This is twice
``idle_body_time`` (see ``soak_deployment``), because the bytes that the system accepted count as
read when the first period ends."""
_POLL: Final = 0.2
"""Seconds between two checks of the connection's state."""
_ESTABLISHED: Final = "01"
"""The state in ``/proc/net/tcp`` of a connection that neither end has closed."""
_MIB: Final = 1 << 20
_LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
_CODES: Final = {str(each.value[0]): each.name for each in grpc.StatusCode}
_REFUSED: Final = frozenset({"400", "413", "429", "503"})
_REFUSED_RPC: Final = frozenset({"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})
_UNKNOWN_RPC: Final = frozenset({"INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED"})


@dataclass(frozen=True)
class Attack:
    """``data`` that ``clients`` clients send to ``listener``. ``library`` has further outcomes that
    are expected if grpcio is the server (engine compat). ``is_large`` means that the data inflates
    to many bytes, or that its response is large."""

    listener: str
    data: Callable[[], bytes]
    expected: frozenset[str]
    clients: int = 1
    reads: bool = True
    reaches_server: bool = False
    library: frozenset[str] = frozenset()
    is_large: bool = False

    async def outcomes(self, target: Target) -> set[str]:
        exchange = _rpc if self.listener == "grpc" else _http
        exchanges = (exchange(target, self) for _ in range(self.clients))
        return {each for outcomes in await asyncio.gather(*exchanges) for each in outcomes}


# ---- over HTTP


def _post(path: str, body: bytes, **headers: str) -> bytes:
    fields = {"Host": "x", "Authorization": f"Bearer {KEY}", "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    head = f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _binary(model: str, datatype: str, shape: list[int], data: bytes, *, zipped: bool) -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape,
              "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + data
    return _post(
        f"/v2/models/{model}/infer",
        gzip.compress(body) if zipped else body,
        Content_Encoding="gzip" if zipped else "",
        Inference_Header_Content_Length=str(len(head)),
    )


def _gzip_bomb() -> bytes:
    return _binary("silent.identity", "UINT8", [32 * _MIB], bytes(32 * _MIB), zipped=True)


def _unread() -> bytes:
    third = b"\xab\xaa\xaa\x3e"  # many digits in JSON
    return _binary("identity", "FP32", [2 * _MIB], third * 2 * _MIB, zipped=False)


def _long_json() -> bytes:
    count = 4 * _MIB
    head = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{count}],"data":[0'
    body = head.encode() + b",0" * (count - 1) + b"]}]}"
    return _post("/v2/models/identity/infer", gzip.compress(body), Content_Encoding="gzip")


def _empty_texts() -> bytes:
    return _binary("identity", "BYTES", [_MIB], bytes(4 * _MIB), zipped=True)


def _many_dims(key: str) -> bytes:
    dims = ",".join("1" * 31_000)
    header = f'batch_size:1 input{{name:"INPUT0" dims:[{dims}]}} output{{name:"OUTPUT0" raw{{}}}}'
    return _post("/api/infer/identity", bytes(4), NV_InferRequest=header, Authorization=key)


def _with_model(path: str) -> bytes:
    return _post(f"/v2/models/{path}/infer", b'{"inputs":[]}')


def _with_long_headers() -> bytes:
    """Return a request whose long headers might make a server close a shared connection."""
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    )
    long = ",".join(f"k{number}=" + "v" * 100 for number in range(85))
    return _post(
        "/v2/models/rest.identity/infer", body.encode(), baggage=long, tracestate=long[:9000]
    )


async def _http(target: Target, attack: Attack) -> list[str]:
    host, _, port = target.address.rpartition(":")
    created = socket.socket()
    created.setblocking(False)  # noqa: FBT003
    if not attack.reads:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(created, (host, int(port)))
    limit = 1 << (16 if attack.reads else 10)
    reader, writer = await asyncio.open_connection(
        sock=created, ssl=target.tls, server_hostname=host if target.tls else None, limit=limit
    )
    try:
        writer.write(attack.data())
        return [await _answer(reader, None if attack.reads else writer)]
    except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
        return ["late" if isinstance(error, TimeoutError) else "cut off"]
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, unread: asyncio.StreamWriter | None) -> str:
    """Return the status of a complete response. With ``unread``, the writer of the connection, stop
    reading after the start of the response until the server has closed the connection."""
    async with asyncio.timeout(_PATIENCE + (_UNREAD if unread else 0)):
        status = (await reader.readline()).split()
        while unread and _is_open_at_server(unread):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL)
        length = 0
        while line := (await reader.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        while length:
            received = await reader.read(min(length, _MIB))
            if not received:
                raise asyncio.IncompleteReadError(b"", length)
            length -= len(received)
        return status[1].decode() if len(status) > 1 else "cut off"


def _is_open_at_server(writer: asyncio.StreamWriter) -> bool:
    """Return whether the server, on the same machine, has not closed the connection yet. The client
    cannot see the end before it has read all bytes, so the kernel's table is read instead."""
    ports = (writer.get_extra_info(name)[1] for name in ("peername", "sockname"))
    server, client = (f":{port:04X}" for port in ports)
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return any(
        row[1].endswith(server) and row[2].endswith(client) and row[3] == _ESTABLISHED
        for row in rows
    )


# ---- over gRPC

_WIDE: Final = frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**30)]) + frames.window_update(
    0, 2**30
)
"""Settings that allow complete responses without window updates."""


def _message(stream: int, data: bytes, *, zipped: bool = False) -> bytes:
    framed = bytes([zipped]) + len(data).to_bytes(4) + data
    parts = [framed[at : at + 16_384] for at in range(0, len(framed), 16_384)]
    last = len(parts) - 1
    return b"".join(
        frames.frame(frames.DATA, frames.END_STREAM if at == last else 0, stream, part)
        for at, part in enumerate(parts)
    )


def _field(number: int, data: bytes) -> bytes:
    """Encode a protobuf field of type bytes."""
    written, length = bytearray([number << 3 | 2]), len(data)
    while length >= 0x80:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    written.append(length)
    return bytes(written) + data


def _infer_call(message: bytes, key: str = KEY, *, zipped: bool = True) -> bytes:
    data = gzip.compress(message) if zipped else message
    return call_headers(1, INFER, key, zipped=zipped) + _message(1, data, zipped=zipped)


def _tiny_fields(model: bytes, number: int, key: str) -> bytes:
    return _infer_call(_field(1, model) + _field(number, b"") * 20_000_000, key)


def _raw_texts() -> bytes:
    tensor = _field(1, b"INPUT0") + _field(2, b"BYTES") + b"\x1a\x03\x80\x80\x40"
    return _infer_call(_field(1, b"identity") + _field(5, tensor) + _field(7, bytes(4 * _MIB)))


def _rpc_with_model(name: bytes) -> bytes:
    return _infer_call(_field(1, name), zipped=False)


def _live(stream: int) -> bytes:
    return call_headers(stream, _LIVE, KEY) + _message(stream, b"")


def _after_reset() -> bytes:
    """Return frames of a proxy: one client's stream is open while another client attacks."""
    late = frames.frame(frames.DATA, 0, 3, b"x" * 100)
    reset = frames.reset(3, frames.Code.CANCEL)
    opened = call_headers(1, _LIVE, KEY) + call_headers(3, INFER, KEY)
    return opened + late + reset + late * 20 + _message(1, b"") + _live(5)


def _flood() -> bytes:
    late = frames.frame(frames.DATA, 0, 1, b"x")
    reset = frames.reset(1, frames.Code.CANCEL)
    return call_headers(1, INFER, KEY) + reset + late * 2000 + _live(3)


def _many_calls() -> bytes:
    """Return the calls of a proxy that does not know the stream limit yet."""
    return b"".join(map(_live, range(1, 1200, 2)))


async def _rpc(target: Target, attack: Attack) -> list[str]:
    host, _, port = target.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=target.tls)
    data = attack.data()
    outcomes: dict[int, str] = {}
    expected_streams = _streams(data)
    blocks = HeaderBlockDecoder(_MIB)
    try:
        writer.write(frames.PREFACE + _WIDE + data)
        async with asyncio.timeout(_PATIENCE):
            while expected_streams - outcomes.keys():
                first, flags, stream = frames.FRAME_HEADER.unpack(
                    await reader.readexactly(frames.FRAME_HEADER_SIZE)
                )
                payload = await reader.readexactly(first >> 8)
                match first & 0xFF:
                    case frames.HEADERS:
                        status = dict(blocks.decode(payload).pairs).get("grpc-status")
                        if status is not None:
                            outcomes[stream] = _CODES.get(status, status)
                    case frames.RST_STREAM if stream in expected_streams:
                        outcomes.setdefault(stream, f"RST {int.from_bytes(payload)}")
                    case frames.GOAWAY:
                        return [*outcomes.values(), f"GOAWAY {int.from_bytes(payload[4:8])}"]
                    case frames.SETTINGS if not flags & frames.ACK:
                        writer.write(frames.SETTINGS_ACK)
    except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
        return [*outcomes.values(), "late" if isinstance(error, TimeoutError) else "cut off"]
    else:
        return list(outcomes.values())
    finally:
        writer.transport.abort()


def _streams(data: bytes) -> set[int]:
    """Return the streams that ``data`` opens and does not reset. Only their outcomes count."""
    streams: set[int] = set()
    at = 0
    while at < len(data):
        first, _, stream = frames.FRAME_HEADER.unpack_from(data, at)
        at += frames.FRAME_HEADER_SIZE + (first >> 8)
        if first & 0xFF == frames.HEADERS:
            streams.add(stream)
        elif first & 0xFF == frames.RST_STREAM:
            streams.discard(stream)
    return streams


def _any_of(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


def _attack(
    listener: str, expected: frozenset[str], make: Callable[..., bytes], *args: object, **more: Any
) -> Attack:
    return Attack(listener, functools.cache(functools.partial(make, *args)), expected, **more)


ATTACKS: Final[Mapping[str, Attack]] = {
    "gRPC: twenty million fields of outputs": _attack(
        "grpc", _REFUSED_RPC, _tiny_fields, b"identity", 6, KEY, is_large=True
    ),
    "gRPC: twenty million empty tensors": _attack(
        "grpc", _REFUSED_RPC, _tiny_fields, b"identity", 7, KEY, is_large=True
    ),
    "gRPC: twenty million fields, anonymous": _attack(
        "grpc", _REFUSED_RPC | _UNKNOWN_RPC, _tiny_fields, b"secret", 7, "", is_large=True
    ),
    "gRPC: a million empty texts": _attack(
        "grpc", _REFUSED_RPC | {"OK"}, _raw_texts, is_large=True
    ),
    "gRPC: a name of 60 KB": _attack("grpc", _REFUSED_RPC, _rpc_with_model, b"n" * 60_000),
    "gRPC: a name with NUL": _attack("grpc", _REFUSED_RPC, _rpc_with_model, b"identity\0-mine"),
    "gRPC: DATA after its own reset": _attack("grpc", _any_of("OK"), _after_reset),
    "gRPC: a flood of DATA after its own reset": _attack(
        "grpc", _any_of("GOAWAY 11"), _flood, library=_any_of("OK")
    ),
    "gRPC: 600 calls before the settings are known": _attack(
        "grpc", _any_of("OK"), _many_calls, library=_any_of("RST 7", "RST 11")
    ),
    "HTTP: gzip bombs to a silent server": _attack(
        "http", _REFUSED | {"502", "504"}, _gzip_bomb, clients=4, is_large=True
    ),
    "HTTP: long JSON that nobody reads": _attack(
        "http", _REFUSED | {"cut off"}, _unread, clients=2, reads=False, is_large=True
    ),
    "HTTP: gzip of long JSON": _attack(
        "http", _REFUSED | {"200"}, _long_json, clients=4, is_large=True
    ),
    "HTTP: a million empty texts": _attack("http", _REFUSED | {"200"}, _empty_texts, is_large=True),
    "HTTP: thirty thousand dimensions": _attack(
        "http", _any_of("400", "413", "431"), _many_dims, f"Bearer {KEY}"
    ),
    "HTTP: thirty thousand dimensions, anonymous": _attack(
        "http", _any_of("400", "401", "403", "413", "431"), _many_dims, ""
    ),
    "HTTP: a name with dot segments": _attack(
        "http", _any_of("400"), _with_model, "pub-x%2f..%2fsecret"
    ),
    "HTTP: a name with NUL": _attack("http", _any_of("400"), _with_model, "simple%00-mine"),
    "HTTP: a path of 60 KB": _attack("http", _any_of("400", "414"), _with_model, "n" * 60_000),
    "HTTP: headers of traces of 9 KB": _attack(
        "http", _any_of("200", "400", "431"), _with_long_headers, reaches_server=True
    ),
}
