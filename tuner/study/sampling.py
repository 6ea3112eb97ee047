"""The samplers of a study as this project sets them up, over Optuna 4.2 to 5."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tuner.objective import Limit
from tuner.study.request import StudyRequest

if TYPE_CHECKING:
    import optuna


def make_sampler(request: StudyRequest, *, attempts: int) -> optuna.samplers.BaseSampler:
    """The sampler of the request's strategy. `attempts` stored before move the seed, so a resume does not repeat itself."""
    import optuna

    seed = (request.seed + attempts) % 2**32
    if request.strategy == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if request.strategy == "physics" and len(request.goals) == 1:
        from tuner.study.roofline_sampler import RooflineSampler

        return RooflineSampler(request.space, goal=request.goals[0], predict=request.predict, seed=seed)
    options: dict[str, Any] = {}
    if request.limits and not _has_named_constraints():
        options["constraints_func"] = _read_violations
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(seed=seed, **options)


def store_violations(handle: Any, limits: tuple[Limit, ...], violations: tuple[float, ...]) -> None:
    """How far each limit is missed, where Optuna's samplers and its dashboard look for it."""
    if not limits:
        return
    handle.set_user_attr("violations", list(violations))
    if _has_named_constraints():
        known = handle.constraints
        for limit, excess in zip(limits, violations, strict=True):
            if limit.text not in known:
                handle.set_constraint(limit.text, excess)


def _has_named_constraints() -> bool:
    """Optuna 5 stores constraints by name with the trial; before that a function of the sampler gave them."""
    import optuna

    return hasattr(optuna.trial.Trial, "set_constraint")


def _read_violations(stored: Any) -> list[float]:
    return [float(excess) for excess in stored.user_attrs.get("violations", ())]
