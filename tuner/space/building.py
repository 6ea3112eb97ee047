"""A space file meets a machine, models and a workload: the search space comes out, with a reason for all that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import msgspec

from tuner.errors import BadInputError
from tuner.runconfig import RunConfig
from tuner.space.base import Absent, Dimension, Domain, SpaceSituation
from tuner.space.catalogue import find_dimension, list_dimensions
from tuner.space.loading import NO_SPACE, SpaceFile, Spec
from tuner.space.parsing import show_value
from tuner.space.searchspace import SearchSpace
from tuner.space.traits import (
    draw_effective_facts,
    draw_refusal_facts,
    find_context_per_slot,
    has_one_cache_type,
)

Verdict = Domain | Absent


def build_space(
    situation: SpaceSituation, preset: SpaceFile = NO_SPACE, *, fixed: Mapping[str, Any] | None = None
) -> SearchSpace:
    """The search space of `preset` here, with the settings in `fixed` (as --set gave them) left alone.

    Raises BadInputError when llama.cpp or the workload would refuse the baseline: an embedding model, or fixed settings that
    contradict each other.
    """
    verdicts = {each.name: _judge(each, preset.dimensions.get(each.name), situation, preset) for each in list_dimensions()}
    pinned = {name: verdict.values[0] for name, verdict in verdicts.items() if _pins(verdict, preset.dimensions.get(name))}
    settled = pinned | {name: _parse(name, value) for name, value in (fixed or {}).items()}
    _check_model(settled, situation)
    bare = _assemble(situation, preset, settled, verdicts)
    baseline = bare.from_values({})
    _check_baseline(bare, baseline, situation)
    return _keep_baseline_inside(_replace(bare, baseline=baseline))


def apply_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with settings as --set gave them."""
    return config.replace(**{name: _parse(name, value) for name, value in settings.items()})


def find_default_config(situation: SpaceSituation) -> RunConfig:
    """llama-server's own settings for this situation, as they would be given, not yet settled."""
    return RunConfig(**{each.name: each.find_default(situation) for each in list_dimensions()})


def _judge(dimension: Dimension, spec: Spec | None, situation: SpaceSituation, preset: SpaceFile) -> Verdict:
    found = dimension.find_domain(situation)
    if isinstance(found, Absent) and not found.may_be_asked_for:
        return found
    match spec:
        case None:
            return Absent(reason=f"the space {preset.name} does not search it")
        case "off":
            return Absent(reason=f"the space {preset.name} switches it off")
        case "auto":
            return found
        case _:
            return _take_listed(spec, found)


def _take_listed(values: tuple[Any, ...], found: Verdict) -> Domain:
    numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    ordered = found.ordered if isinstance(found, Domain) else numbers
    return Domain(values=tuple(sorted(values)) if ordered else values, ordered=ordered)


def _pins(verdict: Verdict, spec: Spec | None) -> TypeGuard[Domain]:
    """One value listed by the user pins the setting; one value found by us only leaves nothing to search."""
    return isinstance(verdict, Domain) and len(verdict.values) == 1 and isinstance(spec, tuple)


def _assemble(situation: SpaceSituation, preset: SpaceFile, fixed: dict[str, Any], verdicts: dict[str, Verdict]) -> SearchSpace:
    searched = {
        name: verdict
        for name, verdict in verdicts.items()
        if isinstance(verdict, Domain) and len(verdict.values) > 1 and name not in fixed
    }
    known = {each.name: each for each in list_dimensions()}
    default = find_default_config(situation).replace(**fixed)
    if "threads" in fixed and "threads_batch" not in fixed:
        default = default.replace(threads_batch=default.threads)
    listed = {"cache_type_k", "cache_type_v"} & ({*fixed} | {k for k, v in preset.dimensions.items() if isinstance(v, tuple)})
    return SearchSpace(
        name=preset.name,
        domains=searched,
        absent={name: _explain(name, verdict, fixed) for name, verdict in verdicts.items() if name not in searched},
        fixed=fixed,
        baseline=default,
        facts={spec.path: draw_effective_facts(situation, spec) for spec in situation.models},
        refusal_facts={spec.path: draw_refusal_facts(situation, spec) for spec in situation.models},
        affects={name: known[name].affects_in(situation) for name in searched},
        costs={name: known[name].cost for name in searched},
        context_per_slot=None if {"ctx_size"} & {*searched, *fixed} else find_context_per_slot(situation),
        least_context=situation.least_context,
        v_follows_k=has_one_cache_type(situation) and "cache_type_v" not in fixed,
        keep_k_precise=not situation.allow_quality_loss and not listed,
    )


def _explain(name: str, verdict: Verdict, fixed: Mapping[str, Any]) -> str:
    if name in fixed:
        return f"fixed to {fixed[name]}"
    return verdict.reason if isinstance(verdict, Absent) else "only one value makes sense here"


def _check_model(fixed: Mapping[str, Any], situation: SpaceSituation) -> None:
    paths = [spec.path for spec in situation.models]
    if "model" in fixed and fixed["model"] not in paths:
        raise BadInputError(f"model cannot be {show_value(fixed['model'])}.", f"It takes one of {', '.join(paths)}.")


def _check_baseline(space: SearchSpace, baseline: RunConfig, situation: SpaceSituation) -> None:
    spec = next(each for each in situation.models if each.path == baseline.model)
    if spec.is_encoder_only:
        raise BadInputError(
            f"{spec.name} makes embeddings and writes no text, so there is no decoding to tune.",
            "Give one that writes text.",
        )
    reason = space.refusal(baseline)
    if reason is not None:
        raise BadInputError(f"These settings cannot run: {reason}.", "Change what --set or the space file fixes.")


def _keep_baseline_inside(space: SearchSpace) -> SearchSpace:
    """The default point is always one of the points, so its values are among the values."""
    held = space.values_of(space.baseline)
    domains = {
        name: domain if held[name] in domain.values else _add_value(domain, held[name])
        for name, domain in space.domains.items()
    }
    return _replace(space, domains=domains)


def _add_value(domain: Domain, value: Any) -> Domain:
    values = (*domain.values, value)
    return Domain(values=tuple(sorted(values)) if domain.ordered else values, ordered=domain.ordered)


def _replace(space: SearchSpace, **changes: Any) -> SearchSpace:
    return msgspec.structs.replace(space, **changes)


def _parse(name: str, value: Any) -> Any:
    dimension = find_dimension(name)
    if dimension is None:
        raise BadInputError(f"There is no setting {show_value(name)}.", "rooftune explain lists the settings.")
    return dimension.parse_value(value)
