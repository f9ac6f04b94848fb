"""A node's only network device: a TUN, which hands its packets to whoever holds its descriptor."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

DEVICE: Final = Path("/dev/net/tun")
NAME: Final = "node0"
# Packets that wait for the relay while others have its core; the kernel's own 500 drop sooner.
QUEUE: Final = 5000

_TUNSETIFF: Final = 0x400454CA
# A packet of up to 64 KB with a header that says how to cut it, instead of many: a tenth of the
# relay's work where much is sent at once.
_TUN_NO_PI_VNET_HDR: Final = 0x0001 | 0x1000 | 0x4000
_SIOCADDRT, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x890B, 0x8916, 0x891C
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8913, 0x8914, 0x8922, 0x8943
_UP: Final = 1
_ROUTE_UP_HOST: Final = 0x0001 | 0x0004


def opened(address: IPv4Address, neighbors: Sequence[IPv4Address], *, mtu: int) -> int:
    """Open the device in the calling thread's namespace, and bring it and the loopback up.

    Only the neighbors get a route: whatever else is sent to fails at once with "Network is
    unreachable". The descriptor does not block: a read gives a packet behind ten bytes of `struct
    virtio_net_hdr`, a write takes one. The device is gone when it is closed. OSError as the kernel
    says.
    """
    import ctypes

    name = ctypes.create_string_buffer(NAME.encode())
    whole = _inet(IPv4Address("255.255.255.255"))
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, _request(struct.pack("H", _TUN_NO_PI_VNET_HDR)))
        # Nothing but what programs send: no neighbor discovery.
        with suppress(FileNotFoundError):  # a kernel without IPv6
            Path(f"/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6").write_text("1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _up(control, "lo")
            for order, content in (
                (_SIOCSIFADDR, _inet(address)),
                (_SIOCSIFNETMASK, whole),
                (_SIOCSIFMTU, struct.pack("i", mtu)),
                (_SIOCSIFTXQLEN, struct.pack("i", QUEUE)),
            ):
                fcntl.ioctl(control, order, _request(content))
            _up(control, NAME)
            for neighbor in neighbors:  # a route by way of the device: `struct rtentry`
                ends = _inet(neighbor), _inet(IPv4Address(0)), whole
                rest = _ROUTE_UP_HOST, 0, 0, 0, 0, ctypes.addressof(name), 0, 0, 0
                fcntl.ioctl(
                    control, _SIOCADDRT, struct.pack("@L16s16s16sHhLPhPLLH", 0, *ends, *rest)
                )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# `struct ifreq` and `struct sockaddr_in`.
def _request(content: bytes, name: str = NAME) -> bytes:
    return struct.pack("16s24s", name.encode(), content)


def _inet(address: IPv4Address) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, address.packed)


def _up(control: socket.socket, name: str) -> None:
    answer = fcntl.ioctl(control, _SIOCGIFFLAGS, _request(b"", name))
    (flags,) = struct.unpack_from("H", answer, 16)
    fcntl.ioctl(control, _SIOCSIFFLAGS, _request(struct.pack("H", flags | _UP), name))
