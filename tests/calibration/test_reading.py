"""How reading depends on the size of a model, found again from times that were computed with a known dependence."""

from __future__ import annotations

import msgspec
import pytest

from tests.calibration.test_fitting import BYTE, speed_up, time_plan
from tuner.calibration.fitting import Fit, fit_ceilings
from tuner.calibration.plan import FORMATS, LARGE_BYTES, REFERENCE, plan_probes
from tuner.calibration.timed import Timed


def gain(form: str, n_bytes: int) -> float:
    """Half the time for each byte up to 100 MB, a quarter more above; Q4_1 gains the square root of that, since it computes."""
    factor = 0.5 if n_bytes < 1e8 else 1.25
    return factor**0.5 if form == "Q4_1" else factor


def change(each: Timed) -> Timed:
    """The time with another speed of reading."""
    if not each.sizes:
        return each
    form, n_bytes = each.shape.format, each.whole_bytes + each.late_bytes
    reading = each.whole_bytes * speed_up(each.threads, each.tokens) + each.late_bytes * speed_up(each.threads, 1)
    wanted = gain(form, n_bytes) * n_bytes * speed_up(each.threads, each.tokens)
    took = (wanted - reading) * BYTE[form]
    return msgspec.structs.replace(each, seconds=tuple(seconds + took for seconds in each.seconds))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_ceilings([change(each) for each in time_plan(plan_probes((2,)))])


def test_every_format_has_a_factor_at_every_size_of_the_reference(fit: Fit) -> None:
    """Timed at the smallest size only, the others follow the reference as far as their own gain goes."""
    assert {each.format for each in fit.readings} == set(FORMATS)
    for each in fit.readings:
        if each.n_bytes == LARGE_BYTES:
            assert each.factor.value == 1.0
        else:
            assert each.factor.value == pytest.approx(gain(each.format, each.n_bytes), rel=1e-3)
    assert len({each.n_bytes for each in fit.readings if each.format == REFERENCE}) == 5


def test_what_a_shared_cache_gives_is_doubtful(fit: Fit) -> None:
    """Exact times, and still a spread wherever the size matters."""
    for each in fit.readings:
        assert (each.factor.spread > 0.05) == (each.factor.value != 1.0)


def test_where_computing_binds_the_size_means_nothing(fit: Fit) -> None:
    """From the first number of tokens on that no size was timed at."""
    for form, most in ((REFERENCE, 16), ("F16", 8)):
        mine = [each for each in fit.readings if each.format == form]
        assert [each.n_bytes for each in mine if each.tokens > most] == [LARGE_BYTES]


def test_other_sizes_do_not_change_what_a_byte_costs(fit: Fit) -> None:
    assert fit.formats == fit_ceilings(time_plan(plan_probes((2,)))).formats
