"""A network of the job's own, in which TensorFlow's servers, which ask for no password, are out of everybody's reach.

`enter` replaces the launcher's process by this file, run as a program; that moves into a new network namespace, turns
the loopback device on, and becomes the launcher again. It imports nothing but the standard library: a process may start
a user namespace, which whoever is not root needs, only while it has one thread.

    if not isolation.is_inside():
        isolation.enter()        # does not return
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

# From linux/sched.h, linux/sockios.h and linux/if.h.
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
INTERFACE_REQUEST = "16sH14x"

# Names the namespace that was made, so that a copy of the environment elsewhere means nothing.
MARK = "LOCKSTEP_NETWORK_NAMESPACE"
REFUSAL = (
    "lockstep launch: --isolate: this system does not let the launcher make a network namespace ({error}). Run it as "
    "root, allow user namespaces (in a container: `--cap-add=SYS_ADMIN`), or leave --isolate out and keep the workers' "
    "ports behind a firewall."
)


def is_inside() -> bool:
    """Whether this process already runs in a network that `enter` made."""
    return os.environ.get(MARK) == _namespace()


def enter() -> NoReturn:
    """Starts this program again, inside; ends with exit code 2 and a sentence where the system does not allow it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """The program: goes inside and becomes the command that its arguments are."""
    try:
        _unshare()
        _turn_loopback_on()
    except OSError as error:
        sys.exit(_refuse(error))
    os.environ[MARK] = _namespace()
    os.execv(sys.argv[1], sys.argv[1:])


def _refuse(error: OSError) -> int:
    sys.stderr.write(REFUSAL.format(error=error.strerror) + "\n")
    return 2


def _namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def _unshare() -> None:
    """Moves this process into a new network namespace; who is no root gets a user namespace to hold it."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) == 0:
        return
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    # The user stays who they are; the kernel wants setgroups switched off before a group may be named.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _turn_loopback_on() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = struct.pack(INTERFACE_REQUEST, b"lo", 0)
        _, flags = struct.unpack(INTERFACE_REQUEST, fcntl.ioctl(device, SIOCGIFFLAGS, request))
        fcntl.ioctl(device, SIOCSIFFLAGS, struct.pack(INTERFACE_REQUEST, b"lo", flags | IFF_UP))


if __name__ == "__main__":
    main()
