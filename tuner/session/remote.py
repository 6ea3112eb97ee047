"""Devices of other machines, lent over llama.cpp's RPC, as part of this one."""

from __future__ import annotations

from typing import Final

import msgspec

from tuner.hardware import DeviceFacts, HardwareProfile
from tuner.roofline.ceilings import Ceilings

_REMOTE: Final = "RPC"


def add_remote_devices(machine: HardwareProfile, servers: int, ceilings: Ceilings | None = None) -> HardwareProfile:
    """`machine` with the devices of other machines before its own, as llama.cpp lists them: those that were calibrated, with
    the memory they had; else one for each of `servers`, of whose memory nothing is known.
    """
    timed = [each for each in (ceilings.devices if ceilings and servers else ()) if each.device.startswith(_REMOTE)]
    memories = [each.memory_bytes for each in timed] or [None] * servers
    remote = tuple(
        DeviceFacts(name=f"{_REMOTE}{index}", backend=_REMOTE, free_bytes=memory, total_bytes=memory)
        for index, memory in enumerate(memories)
    )
    return msgspec.structs.replace(machine, devices=(*remote, *machine.devices))
