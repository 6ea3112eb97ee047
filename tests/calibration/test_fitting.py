"""The fit against times that were computed from known ceilings: it must find them again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from tuner.calibration.fitting import fit_ceilings, fit_device
from tuner.calibration.plan import CACHES, DEVICE_FORMATS, FORMATS, Probe, plan_device, plan_probes
from tuner.calibration.timed import Timed
from tuner.roofline.ceilings import Figure

STEP, LAYER, OP = 2e-4, 3e-5, 4e-11
BYTE = {form: (number + 1) * 2e-11 for number, form in enumerate(FORMATS)}


def speed_up(threads: int, tokens: int) -> float:
    """Threads share the work; each further token adds a tenth."""
    return (1 + (tokens - 1) / 10) / threads


LATENCY, CROSSED = 1e-4, 1e-8


def time_plan(probes: Sequence[Probe], *, noise: float = 0.0, step: float = STEP, layer: float = LAYER) -> list[Timed]:
    """A device counts as one thread."""
    draw = random.Random(3)
    found = []
    for probe in probes:
        for case in probe.cases:
            bare = Timed(
                shape=probe.shape, cache=probe.cache, history=probe.history, tokens=case.tokens, depth=case.depth,
                threads=case.threads if probe.device == "CPU" else 0, seconds=(), device=probe.device, cache_stays=probe.cache_stays, sizes=probe.sizes,
            )  # fmt: skip
            threads = max(1, bare.threads)
            byte_s = BYTE[probe.shape.format]
            took = (
                step
                + layer * probe.shape.n_layer
                + bare.whole_bytes * byte_s * speed_up(threads, case.tokens)
                + bare.late_bytes * byte_s * speed_up(threads, 1)
                + bare.operations * op_of(probe.cache) / threads
                + bare.crossings * LATENCY
                + bare.crossed_bytes * CROSSED
            )
            seconds = tuple(took * draw.uniform(1 - noise, 1 + noise) for _ in range(3))
            found.append(msgspec.structs.replace(bare, seconds=seconds))
    return found


def op_of(cache: tuple[str, str, bool]) -> float:
    return OP * (1 + CACHES.index(cache))


def near(figure: Figure, value: float, rel: float) -> bool:
    return figure.value == pytest.approx(value, rel=rel)


def test_exact_times_give_the_ceilings_back() -> None:
    fit = fit_ceilings(time_plan(plan_probes((1, 2))))
    assert {each.format for each in fit.formats} == set(FORMATS)
    for each in fit.formats:
        assert near(each.seconds_per_byte, BYTE[each.format] * speed_up(each.threads, each.tokens), 1e-6)
    for each in fit.fixed:
        assert near(each.layer_s, LAYER, 1e-4)
        assert near(each.step_s, STEP, 1e-3)


def test_attention_is_told_apart_by_cache_type_and_flash_attention() -> None:
    fit = fit_ceilings(time_plan(plan_probes((1, 2))))
    assert {(each.cache_type_k, each.cache_type_v, each.flash_attn) for each in fit.attention} == set(CACHES)
    for each in fit.attention:
        wanted = op_of((each.cache_type_k, each.cache_type_v, each.flash_attn)) / each.threads
        assert near(each.seconds_per_op, wanted, 1e-4)


def test_noise_widens_the_spread_and_moves_bytes_little() -> None:
    """Times that vary by 2 % leave bytes per second within a few percent; what is small may vary more, and says so."""
    fit = fit_ceilings(time_plan(plan_probes((2,)), noise=0.02))
    for each in fit.formats:
        if each.tokens == 1:
            assert near(each.seconds_per_byte, BYTE[each.format] * speed_up(2, 1), 0.08)
    assert all(each.seconds_per_byte.spread > 0 for each in fit.formats)


def test_a_cost_that_is_not_there_is_zero_and_never_negative() -> None:
    fit = fit_ceilings(time_plan(plan_probes((2,)), noise=0.01, step=0.0, layer=0.0))
    for each in fit.fixed:
        assert each.layer_s.value >= 0
        assert each.step_s.value >= 0


def test_the_roofs_are_the_fastest_of_all_formats() -> None:
    device = fit_device(fit_ceilings(time_plan(plan_probes((1, 2)))).formats)
    assert near(device.bandwidth, 1 / (BYTE["Q8_0"] * speed_up(2, 1)), 1e-6)
    assert device.compute.value > 0


def test_a_busy_machine_marks_the_figures_it_touched() -> None:
    timed = time_plan(plan_probes((2,)))
    timed = [msgspec.structs.replace(each, marked="busy" if each.shape.format == "F16" else "") for each in timed]
    fit = fit_ceilings(timed)
    assert {each.format for each in fit.formats if each.seconds_per_byte.marked} == {"F16"}


def test_a_device_s_figures_and_its_link_are_told_apart() -> None:
    """Every batch crosses the link twice; what that costs is neither the device's step nor its layers."""
    fit = fit_ceilings(time_plan(plan_device("RPC0", 0)), "RPC0")
    (link,) = fit.links
    assert near(link.latency_s, LATENCY, 0.05)
    assert near(link.bytes_per_s, 1 / CROSSED, 0.05)
    assert {each.format for each in fit.formats} == set(DEVICE_FORMATS)
    for each in fit.formats:
        assert (each.device, each.threads) == ("RPC0", 0)
        assert near(each.seconds_per_byte, BYTE[each.format] * speed_up(1, each.tokens), 0.05)
    for fixed in fit.fixed:
        assert near(fixed.layer_s, LAYER, 0.1)
        assert near(fixed.step_s, STEP, 0.5)


def test_a_device_s_figures_leave_the_processor_s_alone() -> None:
    both = [*time_plan(plan_probes((2,))), *time_plan(plan_device("RPC0", 0))]
    assert fit_ceilings(both) == fit_ceilings(time_plan(plan_probes((2,))))
