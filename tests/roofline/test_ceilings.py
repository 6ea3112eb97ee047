"""Figures of several places put together."""

from __future__ import annotations

import msgspec

from tests.builders.ceilings import make_ceilings
from tuner.roofline.ceilings import Ceilings, join_ceilings

ROWS = ("devices", "formats", "attention", "fixed", "links")


def keep_devices(ceilings: Ceilings, *names: str) -> Ceilings:
    rows = {row: tuple(each for each in getattr(ceilings, row) if each.device in names) for row in ROWS}
    return msgspec.structs.replace(ceilings, **rows)


def make_server(*devices: str, doubts: tuple[str, ...] = ()) -> Ceilings:
    return keep_devices(make_ceilings(devices=("CPU", *devices), doubts=doubts), *devices)


def test_without_servers_nothing_changes() -> None:
    assert join_ceilings(make_ceilings(), ()) == make_ceilings()


def test_servers_devices_are_numbered_on_and_come_before_the_machine_s_own() -> None:
    """As llama.cpp orders them: RPC devices first, counted over all servers."""
    both = join_ceilings(make_ceilings(devices=("CPU", "CUDA0")), (make_server("RPC0", "RPC1"), make_server("RPC0")))
    assert [each.device for each in both.devices] == ["CPU", "RPC0", "RPC1", "RPC2", "CUDA0"]
    for row in ("formats", "attention", "fixed"):
        assert {each.device for each in getattr(both, row)} == {"CPU", "RPC0", "RPC1", "RPC2", "CUDA0"}
    assert sorted(each.device for each in both.links) == ["CUDA0", "RPC0", "RPC1", "RPC2"]


def test_each_device_keeps_its_own_figures() -> None:
    """The second device of the first server is ten times as fast as its first one."""
    both = join_ceilings(make_ceilings(), (make_server("RPC0", "RPC1"), make_server("RPC0")))
    speeds = {each.device: each.bandwidth.value for each in both.devices}
    assert speeds["RPC1"] == 10 * speeds["RPC0"]
    assert speeds["RPC2"] == speeds["RPC0"]


def test_doubts_are_told_once() -> None:
    servers = (make_server("RPC0", doubts=("busy",)), make_server("RPC0", doubts=("busy",)))
    assert join_ceilings(make_ceilings(doubts=("old",)), servers).doubts == ("old", "busy")
