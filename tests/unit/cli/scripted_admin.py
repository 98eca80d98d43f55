"""An admin listener with scripted JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from http_stand_in import QuietHandler, StandInServer


@contextmanager
def scripted_admin(respond: Callable[[str], Any]) -> Iterator[str]:
    """Yield ``host:port`` of a server that sends ``respond(path)`` as JSON, and 404 for None."""

    class Admin(QuietHandler):
        def get(self) -> None:
            fields = respond(self.path)
            if fields is None:
                self.respond(404, b"no")
            else:
                self.respond(200, fields)

    with StandInServer(Admin) as server:
        yield server.address
