"""Access logs of several processes on one pipe with a slow reader."""

from __future__ import annotations

import array
import fcntl
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

import infergate
from infergate.runtime.workers.log_lock import LogLock

WRITER = """
import sys
sys.path[:0] = [sys.argv[3]]
from infergate.observe.access_log import AccessLog
from infergate.runtime.workers.log_lock import LogLock
from infergate.core.request_context import RequestContext
line = sys.argv[1].encode() * 9000 + b"\\n"
log = AccessLog(lambda entry: line, lambda: None, lock=LogLock(int(sys.argv[2])))
for _ in range(60):
    log.record(RequestContext(""), 0.0, 0.0)
sys.stderr.write("!")
sys.stderr.flush()
log.close()
log._writer.join()
"""
PIPE_SIZE = 65536


def unread_bytes(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def is_blocked(pid: int) -> bool:
    """Return whether all threads of the process are sleeping."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(each.read_text().rpartition(")")[2].split()[0] == "S" for each in tasks)


def test_lines_longer_than_an_atomic_write_are_not_mixed() -> None:
    lock = LogLock.create_file()
    source = str(Path(infergate.__file__).parents[1])
    read_end, write_end = os.pipe()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, letter, str(lock), source],
            stdout=write_end, stderr=subprocess.PIPE, pass_fds=(lock,),
        )
        for letter in "ab"
    ]  # fmt: skip
    os.close(write_end)
    for each in writers:
        assert each.stderr is not None
        assert each.stderr.read(1) == b"!"
        each.stderr.close()
    blocked_checks = 0
    while blocked_checks < 5:  # both writers wait for the reader
        time.sleep(0.001)
        full = unread_bytes(read_end) > PIPE_SIZE - 4096
        blocked_checks = (
            blocked_checks + 1 if full and all(is_blocked(each.pid) for each in writers) else 0
        )
    received = bytearray()
    while part := os.read(read_end, 4096):
        received += part
    assert [each.wait() for each in writers] == [0, 0]
    os.close(read_end)
    os.close(lock)
    lines = bytes(received).split(b"\n")
    assert lines.pop() == b""
    assert sorted(lines) == [b"a" * 9000] * 60 + [b"b" * 9000] * 60
