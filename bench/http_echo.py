"""An HTTP/1.1 server that costs almost nothing, because every request gets the same prepared
response.

Only the length of a request is parsed. The response is prepared together with its head.

python -m bench.http_echo PORT RESPONSE_FILE      (the file contains a complete HTTP response)
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import cast

import uvloop

from .echo import serve

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"


class HttpEcho(asyncio.Protocol):
    def __init__(self, response: bytes) -> None:
        self.response = response
        self.head = b""
        self.missing = 0
        """The number of bytes of the body that have not arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        while data:
            if self.missing:
                consumed = min(self.missing, len(data))
                self.missing, data = self.missing - consumed, data[consumed:]
            else:
                self.head, end, data = (self.head + data).partition(HEAD_END)
                if not end:
                    return
                length = LENGTH.search(self.head + HEAD_END)
                self.missing = int(length[1]) if length else 0
                self.head = b""
            if not self.missing:
                self.transport.write(self.response)


if __name__ == "__main__":
    response = Path(sys.argv[2]).read_bytes()
    uvloop.run(serve(int(sys.argv[1]), lambda: HttpEcho(response)))
