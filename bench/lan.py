"""Simulates several machines on one machine, with network namespaces on a bridge.

*Rule 1.* The name of every namespace contains the id of this process. When the ``Lan`` ends, it
kills the processes, and then removes the namespaces.

*Rule 2.* After ``enter``, this process is on one of the machines and cannot leave it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from peers.support.installed import run

_NETWORK = 0x40000000
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD = 20_000
"""The period over which a machine's CPU is limited, in microseconds."""
_SUBNET = "10.77.0"
_libc = ctypes.CDLL(None, use_errno=True)


def is_possible() -> bool:
    """Return whether this process may create namespaces."""
    name = f"infergate-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except (RuntimeError, FileNotFoundError):
        return False
    run("ip", "netns", "del", name)
    return True


@dataclass
class Machine:
    """A simulated machine. ``hosts`` is its hosts file, which replaces DNS."""

    name: str
    space: str
    address: str
    hosts: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, argv: Sequence[str], folder: Path) -> None:
        """Run ``argv`` on the machine in its own session. Its output goes to ``folder``."""
        # `ip netns exec` gives each command its own mounts.
        script = f'mount --bind {self.hosts} /etc/hosts && exec "$@"'
        with (folder / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, "sh", "-c", script, "sh", *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)

    def set_names(self, names: Mapping[str, Sequence[str]]) -> None:
        """Set the addresses of each name in ``names``."""
        lines = [f"{address} {name}\n" for name, many in names.items() for address in many]
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))


class Lan:
    """A network of machines. ``folder`` has their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bridge = f"infergate-{os.getpid()}-lan"
        self._cleanup = contextlib.ExitStack()
        self._machines = 0

    def __enter__(self) -> Self:
        self._space(self._bridge)
        inside = ("ip", "-n", self._bridge, "link")
        run(*inside, "add", "lan", "type", "bridge")
        run(*inside, "set", "lan", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def machine(self, name: str) -> Machine:
        self._machines += 1
        number = self._machines
        space = f"infergate-{os.getpid()}-{name}"
        self._space(space)
        link, address = f"v{number}", f"{_SUBNET}.{number}"
        peer = ("peer", "name", "eth0", "netns", space)
        run("ip", "-n", self._bridge, "link", "add", link, "type", "veth", *peer)
        run("ip", "-n", self._bridge, "link", "set", link, "master", "lan", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", space, "link", "set", device, "up")
        hosts = self._folder / f"{name}.hosts"
        created = Machine(name, space, address, hosts)
        created.set_names({})
        self._cleanup.callback(_stop, created)
        return created

    def enter(self, machine: Machine) -> None:
        """Move this process to ``machine``."""
        with Path(f"/run/netns/{machine.space}").open() as space:
            if _libc.setns(space.fileno(), _NETWORK):
                raise OSError(ctypes.get_errno(), "setns")

    def _space(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._cleanup.callback(run, "ip", "netns", "del", name)


@contextlib.contextmanager
def limited(machines: Sequence[Machine], share: float) -> Iterator[None]:
    """Limit each machine's first process to ``share`` of one processor while the block runs, with
    control groups of version 1 or 2."""
    is_version_1 = (_CGROUPS / "cpu").is_dir()
    root = _CGROUPS / "cpu" if is_version_1 else _CGROUPS
    quota = round(share * _PERIOD)
    with contextlib.ExitStack() as stack:
        for machine in machines:
            group = root / machine.space
            group.mkdir()
            stack.callback(group.rmdir)
            if is_version_1:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
            pid = str(machine.processes[0].pid)
            (group / "cgroup.procs").write_text(pid)
            stack.callback((root / "cgroup.procs").write_text, pid)
        yield


def _stop(machine: Machine) -> None:
    for process in machine.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
