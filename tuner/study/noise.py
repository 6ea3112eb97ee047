"""How far single runs of one configuration scatter here, as the runs so far tell it."""

from __future__ import annotations

import math
import statistics
from typing import Final

from tuner.study.attempt import Attempt
from tuner.study.history import History

NOISE: Final = 0.015
"""Standard deviation of one sample in log units, until samples of the study say otherwise."""
_LEAST_NOISE: Final = 0.005
_FEWEST_SPREADS: Final = 3


def find_noise(history: History) -> float:
    """Standard deviation of one sample in log units, from points with several."""
    spreads = [spread for attempt in history.attempts for spread in _list_spreads(attempt)]
    return max(_LEAST_NOISE, statistics.median(spreads)) if len(spreads) >= _FEWEST_SPREADS else NOISE


def _list_spreads(attempt: Attempt) -> list[float]:
    measurement = attempt.trial.outcome.measurement if attempt.trial.outcome else None
    if measurement is None or not attempt.was_run:
        return []
    columns = ([s.ttft_ms for s in measurement.samples], [s.tpot_ms for s in measurement.samples])
    known = ([math.log(value) for value in column if value] for column in columns)
    return [statistics.stdev(values) for values in known if len(values) > 1]
