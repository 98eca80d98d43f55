"""Whose what of a configuration is, and where it listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infergate.config import compile as compiled
from infergate.config.load import parse
from infergate.config.schema import Config
from infergate.runtime.workers.sockets import given, held, of_supervisor, of_worker, wanted
from infergate.transport.base import Address
from infergate.transport.binding import bound
from infergate.transport.loads import Loads

FREE = Address("127.0.0.1", 0)


def config(folder: Path) -> Config:
    text = f"""
listeners:
  http: {{address: "127.0.0.1:0"}}
  grpc: null
  admin: {{address: "127.0.0.1:7"}}
  graphpipe:
    - {{address: "unix:{folder}/a.sock", model: simple, mode: "600"}}
    - {{address: "127.0.0.1:0", model: simple}}
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: "*", backend: demo}}]
access: {{rules: [{{who: [anonymous]}}]}}
"""
    return parse(text, str(folder / "routes.yaml"), {})


def test_workers_listen_where_they_are_told_and_the_supervisor_tells_how_they_are(
    tmp_path: Path,
) -> None:
    whole = config(tmp_path)
    names = ["http", "graphpipe[0]", "graphpipe[1]"]
    assert list(wanted(whole)) == names
    moved = wanted(whole) | {"http": Address("127.0.0.1", 5), "graphpipe[1]": Address("x", 6)}
    theirs = of_worker(whole, moved)
    assert wanted(theirs) == moved
    assert wanted(theirs)["graphpipe[0]"].mode == 0o600
    assert theirs.listeners.admin is None
    assert theirs.backends == whole.backends
    assert theirs.access == whole.access is not None
    ours = of_supervisor(whole)
    assert compiled.addresses(ours) == {"admin": Address("127.0.0.1", 7)}
    assert not compiled.bound_listeners(ours)
    assert not ours.backends
    assert ours.access is None


async def test_sockets_are_there_as_long_as_they_are_held(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    one = await held("http", FREE, bound, workers=2)
    two = await held("raw", Address(unix=str(path)), bound, workers=2)
    assert one.address.port
    told, descriptors = given([one, two])
    assert told == ((one.address, 2), (two.address, 2))
    assert descriptors == [*one.descriptors, *two.descriptors]
    loads = Loads(descriptors[2], 1)
    loads.tell(4)
    assert two.loads.told() == (-1, 4)
    with pytest.raises(OSError, match=r"listeners\.grpc: cannot listen on .*in use"):
        await held("grpc", one.address, bound, workers=2)
    one.close()
    two.close()
    assert not path.exists()
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(each)
    again = await held("http", one.address, bound, workers=2)
    again.close()
