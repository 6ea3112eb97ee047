"""What to try where the default configuration does not fit: a smaller context first, then fewer layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tuner.runconfig import RunConfig
from tuner.study.points import find_config
from tuner.workload import Workload

if TYPE_CHECKING:
    from tuner.space.searchspace import SearchSpace


def list_smaller(space: SearchSpace, workload: Workload, fits: Callable[[RunConfig], bool]) -> Iterator[dict[str, Any]]:
    """Values of smaller configurations that still hold the workload and may fit, nearest to the default first."""
    defaults = dict(space.values_of(space.baseline))
    needed = workload.tokens_per_slot * workload.users
    for name, least in (("ctx_size", needed), ("n_gpu_layers", 0)):
        domain = space.domains.get(name)
        if domain is None:
            continue
        current = getattr(find_config(space, {}), name)
        for value in sorted((v for v in domain.values if least <= v < current), reverse=True):
            values = {**defaults, name: value}
            config = find_config(space, values)
            if space.refusal(config) is None and fits(config):
                yield values
