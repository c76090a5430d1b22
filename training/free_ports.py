"""Ports of this machine for the workers of a job, which no other launcher takes meanwhile.

A port that was free when it was looked for may be taken before the worker listens on it. Three things prevent that:
ports lie outside the range from which the kernel serves connections and port 0; each is locked under its number in the
kernel's table of abstract sockets, which other launchers look at and which forgets a launcher that dies; and a port on
which somebody listens already is passed over.

    with free_ports(2) as ports:
        ...                      # start the workers on them
"""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST_PORT, LAST_PORT = 10000, 65535
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Finds `count` ports and keeps them for the time of the block.

    Raises:
      OSError: There are not so many free ports.
    """
    with contextlib.ExitStack() as locks:
        found: list[int] = []
        for port in _candidates():
            if len(found) == count:
                break
            lock = _lock(port)
            if lock is not None:
                locks.enter_context(lock)
                if is_free(port):
                    found.append(port)
        if len(found) < count:
            raise OSError(f"found {len(found)} free ports of {count}")
        yield found


def is_free(port: int) -> bool:
    """Whether a server of this process could listen on a port, on all the machine's addresses."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError:
        return False
    return True


def _candidates() -> list[int]:
    """The ports to look at, in an order of each process's own."""
    try:
        low, high = map(int, EPHEMERAL_RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    everything = range(FIRST_PORT, LAST_PORT + 1)
    ports = [port for port in everything if not low <= port <= high] or list(everything)
    random.Random().shuffle(ports)
    return ports


def _lock(port: int) -> socket.socket | None:
    """A socket that holds a port's name, None where somebody else holds it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0lockstep launch port {port}")
    except OSError:
        lock.close()
        return None
    return lock
