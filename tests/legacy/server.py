"""``python -m legacy.server --http PORT --grpc PORT``: run a legacy server.

Each request is written to standard output as one line of JSON: ``method``, ``target`` and
``headers`` of an HTTP request, or ``rpc`` of a gRPC call. A crash is written with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
from typing import Any

import grpc

from legacy.levels import HAZARDS, LEVELS, Behavior
from legacy.rpc import Service
from legacy.server_state import ServerState
from legacy.web import Connection, Endpoints

SEGMENTATION_FAULT = 139
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def write_log(**message: Any) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - tests read this log


def crash(reason: str) -> None:
    """Exit immediately, like the real server's segmentation fault."""
    write_log(crashed=reason)
    os._exit(SEGMENTATION_FAULT)


async def serve(behavior: Behavior, server_id: str, http: int, rpc: int) -> None:
    """Serve on two ports of 127.0.0.1 until the process ends."""
    state = ServerState(behavior, server_id)
    endpoints = Endpoints(state, crash)
    server = grpc.aio.server(options=_UNLIMITED)
    server.add_generic_rpc_handlers((Service(state, write_log),))
    server.add_insecure_port(f"127.0.0.1:{rpc}")
    await server.start()
    http_server = await asyncio.get_running_loop().create_server(
        lambda: Connection(endpoints, state, crash, write_log), "127.0.0.1", http
    )
    await http_server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--grpc", type=int, required=True)
    parser.add_argument("--level", choices=LEVELS, default="1.9")
    parser.add_argument("--id", default="inference:0")
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--hazard", choices=HAZARDS, action="append", default=[])
    parser.add_argument("--without", choices=HAZARDS, action="append", default=[])
    options = parser.parse_args()
    hazards: dict[str, Any] = dict.fromkeys(options.hazard, True) | dict.fromkeys(
        options.without, False
    )
    behavior = dataclasses.replace(LEVELS[options.level], delay_ms=options.delay_ms, **hazards)
    asyncio.run(serve(behavior, options.id, options.http, options.grpc))


if __name__ == "__main__":
    main()
