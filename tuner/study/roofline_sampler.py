"""A sampler of Optuna's API that ranks a space by predictions and corrects them by what was measured. Usable on its own:

    sampler = RooflineSampler(space, goal="tpot", predict=predict, seed=0)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask(sampler.distributions)
    study.tell(trial, measure(sampler.find_config(trial.params)))

The default point comes first, then the best predicted one. A point that was tried, failed ones included, is not proposed again
while there are others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from tuner.objective import LARGER_IS_BETTER, Goal
from tuner.runconfig import RunConfig
from tuner.study.acquisition import choose_next
from tuner.study.candidates import Candidates
from tuner.study.parameters import Parameters
from tuner.study.points import find_config
from tuner.study.ranking import count_changes
from tuner.study.surrogate import Observation, Predict, Surrogate

if TYPE_CHECKING:
    from tuner.space.searchspace import SearchSpace


class RooflineSampler(BaseSampler):
    """Proposes the point of a space from which most improvement of one goal is to be expected.

    A study's value is the goal's figure in its own unit. Without `predict`, or where it returns None, the default and what was
    measured are all there is to go by.
    """

    def __init__(self, space: SearchSpace, *, goal: Goal, predict: Predict | None = None, seed: int = 0) -> None:
        self._space, self._goal = space, goal
        self._parameters = Parameters(space)
        self._random = RandomSampler(seed=seed)
        self._predict, self._seed = predict, seed

    @functools.cached_property
    def _candidates(self) -> Candidates:
        start = self._space.values_of(self._space.baseline)
        return Candidates(self._space, list(self._space.domains), start=start, seed=self._seed)

    @functools.cached_property
    def _surrogate(self) -> Surrogate:
        return Surrogate(self._space, self._candidates, predict=self._predict, answer_tokens=2, limits=())

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The whole space, as `study.ask` takes it."""
        return self._parameters.distributions()

    def find_config(self, params: Mapping[str, Any]) -> RunConfig:
        """The effective point of a trial's parameters."""
        return find_config(self._space, self._parameters.decode(params))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        del study, trial
        return self.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal. {} (a draw of chance) once every point was tried, or for a study of several goals."""
        if len(study.directions) > 1:
            return {}
        row = self._choose([each for each in study.get_trials(deepcopy=False) if each.number != trial.number])
        if row is None:
            return {}
        params = self._parameters.encode(self._candidates.values[row])
        return {name: params[name] for name in search_space}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A draw of chance, for what is no setting of the space."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self._random.reseed_rng()

    def _choose(self, trials: list[FrozenTrial]) -> int | None:
        places = {each.number: self._candidates.find(self.find_config(self._keep_known(each.params))) for each in trials}
        tried = {row for row in places.values() if row is not None}
        done = [each for each in trials if each.state == TrialState.COMPLETE and places[each.number] is not None]
        left = [row for row in range(len(self._candidates)) if row not in tried]
        if not tried or not left:
            return 0 if not tried else None
        if not done:
            return left[0]
        return self._choose_best(done, places, left)

    def _choose_best(self, done: list[FrozenTrial], places: Mapping[int, int | None], left: list[int]) -> int:
        configs = self._candidates.configs
        part = {"context": "memory"}.get(self._goal, self._goal)
        figures = [(configs[row], each.value) for each in done if (row := places[each.number]) is not None and each.value]
        self._surrogate.learn([Observation(config=config, figures={part: value}) for config, value in figures])
        outlook = self._surrogate.look(self._goal)
        changes = [count_changes(config, self._space.baseline) for config in configs]
        seen = {row for each in done if (row := places[each.number]) is not None}
        row = choose_next(outlook, seen, left, changes)
        return min(left, key=lambda each: float(outlook.mean[each])) if row is None else row

    def _keep_known(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in params.items() if name in self._space.domains}


def is_maximised(goal: Goal) -> bool:
    """Whether a study of this goal has to be created with direction="maximize"."""
    return goal in LARGER_IS_BETTER
