"""``python -m legacy.server --http PORT --grpc PORT``: run a legacy server.

Each request is written to standard output as a JSON object per line: ``method``, ``target`` and
``headers`` of an HTTP request, ``rpc`` of a gRPC call.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
from typing import Any

import grpc

from legacy.answers import Answers
from legacy.levels import HAZARDS, LEVELS, Behaviour
from legacy.rpc import Service
from legacy.web import Connection, Endpoints

SEGMENTATION_FAULT = 139
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def note(**message: Any) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - the log is what a test reads


def die(why: str) -> None:
    """Exit immediately, like the real server's segmentation fault."""
    note(died=why)
    os._exit(SEGMENTATION_FAULT)


async def serve(behaviour: Behaviour, server_id: str, http: int, rpc: int) -> None:
    """Serve on two ports of 127.0.0.1 until the process ends."""
    answers = Answers(behaviour, server_id)
    endpoints = Endpoints(answers, die)
    called = grpc.aio.server(options=_UNLIMITED)
    called.add_generic_rpc_handlers((Service(answers, note),))
    called.add_insecure_port(f"127.0.0.1:{rpc}")
    await called.start()
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(endpoints, answers, die, note), "127.0.0.1", http
    )
    await listening.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--grpc", type=int, required=True)
    parser.add_argument("--level", choices=LEVELS, default="1.9")
    parser.add_argument("--id", default="inference:0")
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--hazard", choices=HAZARDS, action="append", default=[])
    parser.add_argument("--without", choices=HAZARDS, action="append", default=[])
    given = parser.parse_args()
    chosen: dict[str, Any] = dict.fromkeys(given.hazard, True) | dict.fromkeys(given.without, False)
    behaviour = dataclasses.replace(LEVELS[given.level], delay_ms=given.delay_ms, **chosen)
    asyncio.run(serve(behaviour, given.id, given.http, given.grpc))


if __name__ == "__main__":
    main()
