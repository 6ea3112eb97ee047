"""Hands a study the predictions of a machine's calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuner.errors import RooftuneError
from tuner.runconfig import RunConfig
from tuner.workload import Workload

if TYPE_CHECKING:
    from tuner.model import ModelSpec
    from tuner.roofline.ceilings import Ceilings
    from tuner.roofline.record import Prediction


def make_predict(
    models: Sequence[ModelSpec], workload: Workload, ceilings: Ceilings | None
) -> Callable[[RunConfig], Prediction | None] | None:
    """What a point of one of these files should do; None where nothing can be said. None altogether without ceilings."""
    if ceilings is None:
        return None
    from tuner.roofline.prediction import Predictor

    predictor = Predictor(ceilings)
    by_path = {spec.path: spec for spec in models}

    def predict(config: RunConfig) -> Prediction | None:
        try:
            return predictor.predict(by_path.get(config.model, models[0]), config, workload)
        except RooftuneError:
            return None

    return predict
