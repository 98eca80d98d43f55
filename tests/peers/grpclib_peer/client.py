"""``client.py HOST PORT``: run the scenarios and print their outcomes as JSON.

Standard input is a JSON object of messages in hex.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError
from raw import INFER, SERVICE, STREAM, Raw

Outcome = Any


async def scenarios(channel: Channel, messages: dict[str, bytes]) -> dict[str, Outcome]:
    infer = UnaryUnaryMethod(channel, INFER, bytes, bytes)
    stream = StreamStreamMethod(channel, STREAM, bytes, bytes)

    async def error_of(call: Callable[[], Awaitable[Any]]) -> Outcome:
        try:
            await call()
        except GRPCError as error:
            return [error.status.name, error.message]
        except TimeoutError:
            return ["DEADLINE_EXCEEDED", "by the client"]
        return ["OK", None]

    async def read_after_writing() -> Outcome:
        async with stream.open(timeout=60) as opened:
            for _ in range(20):
                await opened.send_message(messages["good"])
            await opened.end()
            return [len(each) async for each in opened]

    async def read_after_each_write() -> Outcome:
        async with stream.open(timeout=60) as opened:
            sizes = []
            for _ in range(20):
                await opened.send_message(messages["good"])
                sizes.append(len(await opened.recv_message()))
            await opened.end()
            return sizes

    async def infer_after_cancelled_stream() -> Outcome:
        async with stream.open(timeout=60) as opened:
            await opened.send_message(messages["good"])
            await opened.recv_message()
            await opened.cancel()
        return (await infer(messages["good"])).hex()

    many = await asyncio.gather(*(infer(messages["good"], timeout=60) for _ in range(500)))
    unknown = UnaryUnaryMethod(channel, f"{SERVICE}/ModelDream", bytes, bytes)
    return {
        "good": (await infer(messages["good"], timeout=60, metadata={"x-mine": "1"})).hex(),
        "many": sorted({each.hex() for each in many}),
        "large": len(await infer(messages["large"], timeout=60)),
        "unknown model": await error_of(lambda: infer(messages["unknown"])),
        "unknown method": await error_of(lambda: unknown(b"")),
        "no message": await error_of(lambda: infer(b"\xff" * 5)),
        "late": await error_of(lambda: infer(messages["slow"], timeout=0.3)),
        "stream": await read_after_writing(),
        "in turn": await read_after_each_write(),
        "given up": await infer_after_cancelled_stream(),
    }


async def main() -> None:
    messages = {name: bytes.fromhex(case) for name, case in json.load(sys.stdin).items()}
    channel = Channel(sys.argv[1], int(sys.argv[2]), codec=Raw())
    try:
        json.dump(await scenarios(channel, messages), sys.stdout)
    finally:
        channel.close()


asyncio.run(main())
