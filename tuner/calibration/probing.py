"""Has the measuring child time one synthetic model after another, and judges whether the machine was quiet meanwhile.

Promises: whatever llama.cpp does with one model is a doubt about that one, and the others go on; no model outlives its probe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner.calibration.plan import Probe
from tuner.calibration.synthetic import write_model
from tuner.calibration.timed import Timed
from tuner.errors import BadInputError, InterruptedRunError
from tuner.measure.activity import Activity, compare_snapshots, take_snapshot
from tuner.measure.runner import ChildMeasurer
from tuner.measure.validity import STRICT, Effort, judge_sample
from tuner.memory.record import HOST
from tuner.runconfig import RunConfig

LIMIT_S: Final = 60.0
"""One probe that takes longer than this is given up, s."""
AGAIN_S: Final = 70.0
"""No disturbed probe is repeated after so long, s."""
ENOUGH_S: Final = 6.0
"""No further round of a probe is begun after so long, s."""

Tell = Callable[[str], None]


class ServerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the engine's task tells it."""

    name: str
    """By llama.cpp, such as RPC0."""
    description: str = ""
    """What it says of itself."""
    free_bytes: int | None = None
    """Free memory, bytes."""
    total_bytes: int | None = None
    """Memory, bytes."""


class _Times(msgspec.Struct, frozen=True):
    seconds: tuple[float, ...]
    cpu_share: float


class Prober:
    """Runs probes in one measuring child."""

    def __init__(
        self, measurer: ChildMeasurer, scratch: Path, *, cores: float, tell: Tell, servers: tuple[str, ...] = ()
    ) -> None:
        self._measurer = measurer
        self._scratch = scratch
        self._cores = cores
        self._tell = tell
        self._servers = servers
        self.timed: list[Timed] = []
        self.doubts: list[str] = []

    def run(self, probes: Sequence[Probe]) -> None:
        """Time all of them. Raises InterruptedRunError."""
        again_until = time.monotonic() + AGAIN_S
        for number, probe in enumerate(probes, 1):
            self._tell(f"{number} of {len(probes)}: {probe.title}")
            try:
                found = self._time(probe)
                if any(each.marked for each in found) and time.monotonic() < again_until:
                    self._tell("disturbed, so once more")
                    found = [_pick_better(*both) for both in zip(found, self._time(probe), strict=True)]
                self.timed += found
            except InterruptedRunError:
                raise InterruptedRunError("Stopped before the calibration was through; none of it is kept.") from None
            except BadInputError as error:
                self.doubts.append(f"{probe.title} could not be timed: {error.message}")

    def list_devices(self) -> tuple[ServerDevice, ...]:
        """What the RPC servers offer, in llama.cpp's order. Raises BadInputError where one does not answer."""
        answer = self._measurer.run_task("devices", {"rpc_servers": self._servers}, limit_s=LIMIT_S)
        found = msgspec.convert(answer["devices"], tuple[ServerDevice, ...])
        return tuple(each for each in found if each.name.startswith("RPC"))

    def sum_up(self) -> tuple[str, ...]:
        """All doubts, one sentence each."""
        marked = sum(bool(each.marked) for each in self.timed)
        if not marked:
            return tuple(self.doubts)
        busy = f"The machine was busy while {marked} of {len(self.timed)} times were taken; calibrate again when it is idle."
        return (*self.doubts, busy)

    def _time(self, probe: Probe) -> list[Timed]:
        path = self._scratch / "model.gguf"
        try:
            write_model(path, probe.shape)
        except OSError as error:
            raise BadInputError(f"there is no room for a model in {self._scratch}: {error.strerror}", "") from error
        try:
            before = take_snapshot(own_s=_spent(self._measurer))
            answer = self._measurer.run_task("probe", self._ask_for(probe, path), limit_s=LIMIT_S)
            activity = compare_snapshots(before, take_snapshot(own_s=_spent(self._measurer)))
        finally:
            path.unlink(missing_ok=True)
        times = msgspec.convert(answer["times"], tuple[_Times, ...])
        return [self._form(probe, number, each, activity) for number, each in enumerate(times)]

    def _form(self, probe: Probe, number: int, times: _Times, activity: Activity) -> Timed:
        case, here = probe.cases[number], probe.device == HOST
        if self._servers:  # a server on this machine is no stranger, and cannot be told from one
            activity = msgspec.structs.replace(activity, others_cores=None)
        effort = Effort(threads=case.threads, share=times.cpu_share, on_cpu=here)
        reason = judge_sample([effort], activity, usable_cores=self._cores, tolerance=STRICT)
        return Timed(
            shape=probe.shape,
            cache=probe.cache,
            history=probe.history,
            tokens=case.tokens,
            depth=case.depth,
            threads=case.threads if here else 0,
            seconds=times.seconds,
            device=probe.device,
            cache_stays=probe.cache_stays,
            sizes=probe.sizes,
            marked=f"Measured on a busy machine ({reason})." if reason else "",
        )

    def _ask_for(self, probe: Probe, path: Path) -> dict[str, Any]:
        """All layers here or all of them there; nothing is computed elsewhere."""
        most, here = max(case.tokens for case in probe.cases), probe.device == HOST
        config = RunConfig(
            model=str(path),
            n_gpu_layers=0 if here else -1,
            split_mode="layer" if here else "none",
            main_gpu=probe.device_number,
            op_offload=not here,
            no_kv_offload=probe.cache_stays,
            ctx_size=max(case.depth + case.tokens for case in probe.cases),
            batch_size=most,
            ubatch_size=most,
            cache_type_k=probe.cache[0],
            cache_type_v=probe.cache[1],
            flash_attn="on" if probe.cache[2] else "off",
            threads=1,
            threads_batch=1,
        )
        return {
            "config": msgspec.to_builtins(config),
            "cases": msgspec.to_builtins(probe.cases),
            "rounds": probe.rounds,
            "visit_s": probe.visit_s,
            "limit_s": ENOUGH_S,
            "rpc_servers": self._servers,
        }


def _pick_better(first: Timed, second: Timed) -> Timed:
    """What was undisturbed; of two disturbed ones the faster, since a disturbance only ever slows down."""
    if bool(first.marked) != bool(second.marked):
        return second if first.marked else first
    return min(first, second, key=lambda each: min(each.seconds))


def _spent(measurer: ChildMeasurer) -> float | None:
    """Processor time of the child and of ourselves, s; None while there is no child."""
    import psutil

    if measurer.child_pid is None:
        return None
    try:
        times = psutil.Process(measurer.child_pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system) + time.process_time()
