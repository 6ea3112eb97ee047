"""What is wrong with a machine, from the facts that it tells of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tests.rules.builders import GIB, check_rule, evidence_of, make_blank, make_case, make_gpu, make_host, make_model
from tuner.hardware import HardwareProfile
from tuner.hardware.record import GpuFacts, GpuProcess, NumaNode
from tuner.roofline.ceilings import DeviceCeiling, Figure
from tuner.rules.base import Situation
from tuner.rules.machine.hybrid_cores import _list_ranges
from tuner.workload import Workload

CODES = [f"MAC{number:02}" for number in range(1, 16)]
LLAMA = make_model(n_layer=32, heads=32, kv_heads=8, head=128, context_length=131_072)
DENSE = make_model(parameters=8_000_000_000, n_layer=32, heads=32, kv_heads=8, head=128)


def on(config: dict[str, Any] | None = None, **facts: Any) -> Situation:
    """A quiet machine, spoiled in these facts."""
    return make_case(machine=make_host(**facts), config=config)


def card(**facts: Any) -> GpuFacts:
    return GpuFacts(**({"index": 0, "name": "Card", "uuid": "GPU-0", "cuda_ordinal": 0} | facts))


def note(machine: HardwareProfile, *texts: str) -> Situation:
    return make_case(machine=msgspec.structs.replace(machine, notes=texts))


@pytest.mark.parametrize("code", CODES)
def test_it_is_silent_on_a_machine_in_order_and_on_one_that_tells_nothing(code: str) -> None:
    assert check_rule(code, make_case()) == ()
    assert check_rule(code, make_case(machine=make_host(devices=(make_gpu(),), gpus=(card(),)))) == ()
    assert check_rule(code, make_blank()) == ()


SPOILED = {
    "governor": ("MAC01", on(cpu={"governor": "powersave"}), "hint"),
    "power profile": ("MAC01", on(environment={"power_profile": "low-power"}), "slows"),
    "both": ("MAC01", on(cpu={"governor": "powersave"}, environment={"power_profile": "quiet"}), "slows"),
    "battery": ("MAC02", on(environment={"power_source": "battery", "battery_percent": 40}), "slows"),
    "hot card": ("MAC03", on(gpus=(card(throttle_reasons=("thermal (hardware)",), temperature_c=93),)), "slows"),
    "lowered cap": ("MAC03", on(gpus=(card(power_limit_w=100.0, power_limit_default_w=300.0),)), "slows"),
    "hot processor": (
        "MAC03", on(cpu={"frequency_mhz": 1200.0}, environment={"throttle_count": 90, "load_1m": 6.0}), "slows",
    ),
    "swap while waiting": ("MAC04", on(memory={"swap_used_bytes": 2 * GIB}, environment={"memory_pressure": 12.0}), "slows"),
    "swap asleep": ("MAC04", on(memory={"swap_used_bytes": 2 * GIB}), "hint"),
    "pressure": ("MAC05", on(environment={"cpu_pressure": 35.0, "load_1m": 20.0}), "slows"),
    "load, no pressure told": ("MAC05", on(environment={"cpu_pressure": None, "load_1m": 14.0}), "slows"),
    "card in use": (
        "MAC05", on(gpus=(card(utilization=97, processes=(GpuProcess(pid=9, memory_bytes=GIB),)),)), "slows",
    ),
    "quota": ("MAC08", on(usable=4, limits={"cpu_quota": 4.0}), "hint"),
    "pinned": (
        "MAC09", on(limits={"affinity_cpus": (0, 1), "affinity_count": 2, "usable_threads": 2, "usable_physical": 2}), "hint",
    ),
    "one channel": ("MAC10", on(memory={"channels": 1, "speed_mts": 5600}), "slows"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "situation", "severity"), SPOILED.values(), ids=SPOILED)
def test_what_is_wrong_is_said_with_its_facts(code: str, situation: Situation, severity: str) -> None:
    (finding,) = check_rule(code, situation)
    assert finding.severity == severity
    assert finding.evidence
    assert finding.change == {}


QUIET = {
    "a governor that follows the load": ("MAC01", on(cpu={"governor": "schedutil"})),
    "a balanced profile": ("MAC01", on(environment={"power_profile": "balanced"})),
    "no supply that tells": ("MAC02", on(environment={"power_source": None})),
    "a card at its own cap": ("MAC03", on(gpus=(card(throttle_reasons=("power cap",)),))),
    "heat of long ago": ("MAC03", on(environment={"throttle_count": 90, "load_1m": 6.0})),
    "a processor at rest": ("MAC03", on(cpu={"frequency_mhz": 800.0}, environment={"throttle_count": 90})),
    "a hidden card": ("MAC03", on(gpus=(card(throttle_reasons=("thermal (hardware)",), cuda_ordinal=None),))),
    "a little swap": ("MAC04", on(memory={"swap_used_bytes": 2**27})),
    "load of the host without pressure here": ("MAC05", on(environment={"cpu_pressure": 0.0, "load_1m": 30.0})),
    "this very program": ("MAC05", on(environment={"cpu_pressure": None, "load_1m": 1.5})),
    "a quota above the cores": ("MAC08", on(limits={"cpu_quota": 12.0, "usable_threads": 12})),
    "hardware threads left out": (
        "MAC09", on(limits={"affinity_cpus": tuple(range(8)), "affinity_count": 8, "usable_threads": 8, "usable_physical": 8}),
    ),
    "a quota in place of pinning": (
        "MAC09",
        on(limits={"affinity_cpus": tuple(range(15)), "affinity_count": 15, "cpu_quota": 4.0, "usable_threads": 4,
                   "usable_physical": 4}),
    ),
    "two channels": ("MAC10", on(memory={"channels": 2})),
    "one channel beside a card": ("MAC10", on(memory={"channels": 1}, devices=(make_gpu(),))),
}  # fmt: skip


@pytest.mark.parametrize(("code", "situation"), QUIET.values(), ids=QUIET)
def test_what_is_in_order_is_not_mentioned(code: str, situation: Situation) -> None:
    assert check_rule(code, situation) == ()


@pytest.mark.parametrize(
    ("quota", "usable"), [(4.0, 4), (7.65, 7), (0.5, 1)], ids=["400000 of 100000", "765000 of 100000", "50000 of 100000"]
)
def test_threads_above_a_quota_are_cut_to_it(quota: float, usable: int) -> None:
    """Rounded down, at least one; both thread counts."""
    machine = make_host(
        cores=8, logical=8, usable=usable, limits={"cpu_quota": quota, "cpu_quota_source": "/sys/fs/cgroup/cpu.max"}
    )
    (finding,) = check_rule("MAC08", make_case(machine=machine, config={"threads": 8, "threads_batch": 8}))
    assert finding.change == {"threads": usable, "threads_batch": usable}
    assert finding.severity == "slows"
    assert evidence_of(finding)["the quota is in"] == "/sys/fs/cgroup/cpu.max"


def test_without_a_limit_there_is_no_quota_to_speak_of() -> None:
    assert check_rule("MAC08", make_case(machine=make_host(cores=8, logical=8, limits={"cpu_quota": None}))) == ()


def test_threads_above_the_pinned_processors_are_cut() -> None:
    limits = {"affinity_cpus": (0, 1), "affinity_count": 2, "usable_threads": 2, "usable_physical": 2}
    (finding,) = check_rule("MAC09", on(config={"threads": 8, "threads_batch": 8}, limits=limits))
    assert finding.change == {"threads": 2, "threads_batch": 2}


class TestChannels:
    """Without a word about channels the calibration tells: weights read no faster than one channel of usual modules brings."""

    def check(self, *, speed: float = 10e9, arch: str = "x86_64", symptom: Any = "slow-output", **facts: Any) -> Any:
        ceilings = msgspec.structs.replace(
            make_ceilings(), devices=(DeviceCeiling(device="CPU", bandwidth=Figure(value=speed), compute=Figure(value=1e12)),)
        )
        machine = make_host(cpu={"arch": arch}, **facts)
        return check_rule("MAC10", make_case(machine=machine, ceilings=ceilings, symptom=symptom))

    def test_memory_as_slow_as_one_channel_is_to_be_looked_at(self) -> None:
        (finding,) = self.check()
        assert finding.severity == "hint"
        assert "dmidecode" in finding.remedy
        assert evidence_of(finding) == {
            "weights were read at most at": 10.0,
            "one channel of usual modules brings at most": 25.0,
        }

    @pytest.mark.parametrize(
        "facts",
        [
            {"speed": 30e9},
            {"arch": "aarch64"},
            {"cores": 2, "logical": 2},
            {"usable": 4},
            {"environment": {"virtual_machine": "kvm"}},
            {"symptom": None},
            {"memory": {"channels": 2}},
        ],
        ids=[
            "two channels' worth",
            "another kind",
            "too few cores",
            "some cores only",
            "virtual",
            "quick output",
            "two are told",
        ],
    )
    def test_it_is_silent_where_that_says_nothing_of_channels(self, facts: dict[str, Any]) -> None:
        assert self.check(**facts) == ()


class TestNuma:
    @staticmethod
    def nodes(memory: int | None, count: int = 2, **facts: Any) -> HardwareProfile:
        each = 16 // count
        told = tuple(NumaNode(index=n, cpus=tuple(range(n * each, (n + 1) * each)), memory_bytes=memory) for n in range(count))
        return make_host(cpu={"numa_nodes": told}, **facts)

    def test_a_model_that_fits_one_node_should_be_compared_on_it(self) -> None:
        (finding,) = check_rule("MAC06", make_case(machine=self.nodes(32 * GIB)))
        assert finding.change == {"numa": "isolate", "threads": 4, "threads_batch": 4}
        assert "numactl --cpunodebind=0 --membind=0 llama-server --numa numactl -t 4" in finding.remedy
        assert "Compare" in finding.remedy

    @pytest.mark.parametrize("memory", [GIB // 2, None], ids=["too small", "unknown"])
    def test_else_spreading_should_be_compared(self, memory: int | None) -> None:
        (finding,) = check_rule("MAC06", make_case(machine=self.nodes(memory)))
        assert finding.change == {"numa": "distribute"}
        assert "--numa distribute" in finding.remedy

    def test_it_is_silent_with_one_node_or_a_policy_or_all_on_a_card(self) -> None:
        assert check_rule("MAC06", make_case(machine=self.nodes(32 * GIB, count=1))) == ()
        assert check_rule("MAC06", make_case(machine=self.nodes(32 * GIB), config={"numa": "distribute"})) == ()
        assert check_rule("MAC06", make_case(machine=self.nodes(32 * GIB, devices=(make_gpu(),)))) == ()

    def test_memory_without_processors_is_no_node_to_run_on(self) -> None:
        machine = make_host(cpu={"numa_nodes": (NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1))})
        assert check_rule("MAC06", make_case(machine=machine)) == ()


class TestHybridCores:
    def check(self, threads: int) -> Any:
        kinds = {
            "performance_cores": 6, "efficiency_cores": 8, "performance_cpus": tuple(range(12)),
            "efficiency_cpus": tuple(range(12, 20)),
        }  # fmt: skip
        machine = make_host(cores=14, logical=20, cpu=kinds, limits={"usable_physical": 6})
        return check_rule("MAC07", make_case(machine=machine, config={"threads": threads, "threads_batch": 14}))

    def test_only_the_fast_ones_should_decode(self) -> None:
        (finding,) = self.check(14)
        assert finding.change == {"threads": 6}
        assert "taskset -c 0-11" in finding.remedy

    def test_it_is_silent_where_they_do(self) -> None:
        assert self.check(6) == ()

    @pytest.mark.parametrize(("numbers", "text"), [((0, 1, 2, 3, 6), "0-3,6"), ((4,), "4"), ((7, 0, 1), "0-1,7")])
    def test_numbers_are_written_as_taskset_takes_them(self, numbers: tuple[int, ...], text: str) -> None:
        assert _list_ranges(numbers) == text


class TestWsl:
    @staticmethod
    def check(free: int, *, wsl: bool = True, times: float | None = None) -> Any:
        machine = make_host(devices=(make_gpu(free_bytes=free),), environment={"wsl": wsl})
        situation = make_case(machine=machine, model=DENSE)
        if times is not None:
            prediction = situation.predict(situation.model, situation.config, situation.workload)
            assert prediction is not None
            told: Any = SimpleNamespace(tpot_ms=prediction.tpot.value * times, ttft_ms=None)
            situation = msgspec.structs.replace(situation, measurement=told)
        return check_rule("MAC11", situation)

    FULL = int(4.2 * GIB)

    def test_a_collapse_on_a_full_card_is_called_a_spill(self) -> None:
        (finding,) = self.check(self.FULL, times=8.0)
        assert finding.severity == "slows"
        assert evidence_of(finding)["measured time per token against predicted"] == pytest.approx(8.0)

    def test_a_full_card_is_warned_of(self) -> None:
        (finding,) = self.check(self.FULL)
        assert finding.severity == "hint"

    @pytest.mark.parametrize(
        ("free", "wsl", "times"),
        [(FULL, False, 8.0), (24 * GIB, True, 8.0), (FULL, True, 1.2), (24 * GIB, True, None)],
        ids=["no Windows", "slow with room left", "full and fast", "room left"],
    )
    def test_it_is_silent_elsewhere(self, free: int, wsl: bool, times: float | None) -> None:
        assert self.check(free, wsl=wsl, times=times) == ()


class TestMemoryLimit:
    @staticmethod
    def check(limit: int | None, left: int, free: int) -> Any:
        machine = make_host(
            available_bytes=free, limits={"memory_limit_bytes": limit, "memory_available_bytes": left},
            environment={"container": "docker"},
        )  # fmt: skip
        return check_rule("MAC12", make_case(machine=machine, model=DENSE))

    def test_a_limit_that_keeps_a_model_out_is_named(self) -> None:
        (finding,) = self.check(4 * GIB, 3 * GIB, 32 * GIB)
        told = evidence_of(finding)
        assert told["left within the limit"] == 3 * GIB
        assert told["container"] == "docker"
        assert finding.severity == "stops"

    @pytest.mark.parametrize(
        ("limit", "left", "free"),
        [(None, 3 * GIB, 3 * GIB), (16 * GIB, 15 * GIB, 32 * GIB), (4 * GIB, 3 * GIB, 4 * GIB)],
        ids=["no limit", "it fits within", "the machine is too small as well"],
    )
    def test_it_is_silent_elsewhere(self, limit: int | None, left: int, free: int) -> None:
        assert self.check(limit, left, free) == ()


class TestDriver:
    @pytest.mark.parametrize(
        ("text", "remedy"),
        [
            ("No NVIDIA GPU information: the NVIDIA driver is not loaded.", "modprobe"),
            ("No NVIDIA GPU information: the NVIDIA driver is too old for this nvidia-ml-py.", "Update"),
            ("No NVIDIA GPU information: the NVIDIA driver refuses this user.", "group"),
            ("GPU 1: the NVIDIA driver gives no access to it.", "access"),
            ("GPU 0 is set up to be cut into slices (MIG) but has none: CUDA cannot use it.", "slice"),
            ("CUDA_VISIBLE_DEVICES='7' hides every GPU.", "Unset"),
        ],
    )
    def test_each_answer_has_its_remedy(self, text: str, remedy: str) -> None:
        (finding,) = check_rule("MAC13", note(make_host(), text))
        assert remedy in finding.remedy
        assert evidence_of(finding)["the driver says"] == text

    @pytest.mark.parametrize(
        "text",
        [
            "No NVIDIA GPU information: no NVIDIA driver library was found.",
            "No NVIDIA GPU information: the nvidia-ml-py package is not installed.",
            "This machine does not tell its caches (/sys/devices/system/cpu).",
        ],
    )
    def test_no_driver_at_all_is_normal(self, text: str) -> None:
        assert check_rule("MAC13", note(make_host(), text)) == ()


class TestOrder:
    NOTE = "CUDA numbers unlike cards fastest first, the driver by bus: export CUDA_DEVICE_ORDER=PCI_BUS_ID, with which …"
    TWO = (card(), card(index=1, name="Other", uuid="GPU-1", cuda_ordinal=1))

    def test_unlike_cards_need_a_fixed_order(self) -> None:
        (finding,) = check_rule("MAC14", note(make_host(gpus=self.TWO), self.NOTE))
        assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.remedy
        assert evidence_of(finding) == {"GPU 0 by the driver": "Card", "GPU 1 by the driver": "Other"}

    def test_it_is_silent_for_one_card_or_a_fixed_order(self) -> None:
        assert check_rule("MAC14", note(make_host(gpus=self.TWO[:1]), self.NOTE)) == ()
        assert check_rule("MAC14", note(make_host(gpus=self.TWO))) == ()


class TestLink:
    @staticmethod
    def check(width: int, layers: int) -> Any:
        machine = make_host(devices=(make_gpu(),), gpus=(card(link_width=width, link_width_max=16),))
        return check_rule("MAC15", make_case(machine=machine, config={"n_gpu_layers": layers}))

    def test_a_model_divided_over_a_narrow_link_is_told(self) -> None:
        (finding,) = self.check(4, 5)
        assert evidence_of(finding) == {"lanes of Card, in use": 4, "lanes of Card, possible": 16}

    @pytest.mark.parametrize(("width", "layers"), [(16, 5), (4, -1), (4, 0)], ids=["full width", "all there", "nothing there"])
    def test_it_is_silent_elsewhere(self, width: int, layers: int) -> None:
        assert self.check(width, layers) == ()


def test_the_work_left_for_a_busy_machine_is_at_least_one_thread() -> None:
    (finding,) = check_rule("MAC05", on(environment={"cpu_pressure": 90.0, "load_1m": 99.0}))
    assert "threads to 1" in finding.remedy


def test_long_work_of_others_leaves_its_cores_to_them() -> None:
    workload = Workload(name="turn", prompt_tokens=64, output_tokens=64)
    situation = make_case(machine=make_host(environment={"cpu_pressure": 20.0, "load_1m": 12.0}), workload=workload)
    (finding,) = check_rule("MAC05", situation)
    assert "threads to 4" in finding.remedy
