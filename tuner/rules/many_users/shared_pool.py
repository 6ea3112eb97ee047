"""USR04: one pool of cells for all slots, or one cache for each."""

from __future__ import annotations

from typing import ClassVar

from tuner.memory import kv_bytes
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import change_point


class SharedPool(Rule):
    """llama-server can keep the KV cache (the model's notes on the text so far) of several conversations in two ways. Either
    each slot has its own part, as long as the longest conversation may get; that is what an explicit number of slots gives you.
    Or all slots share one pool (`--kv-unified`), from which each takes what it needs; that is what you get when you give no
    number. With a pool, ten users of whom two hold long conversations need far less than ten long caches. Models with sliding
    windows save besides, because the room that each part keeps beside its windows is needed once only.

    The rule speaks when you told that many users are the matter, there are several slots, and either the separate caches do not
    fit or the pool would be at least a tenth smaller at the same total. It compares both with the numbers of your model.

    When this is wrong: nobody is sure of a share in a pool. One long conversation can take the room of all others, whose
    requests then fail or wait. Where everybody needs the full length at the same time, a pool saves nothing. It is a setting of
    llama-server; llama-cpp-python's `Llama` class does not have it.
    """

    code: ClassVar[str] = "USR04"
    title: ClassVar[str] = "One shared cache or one for each slot"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config = change_point(situation, {})
        if situation.symptom != "many-users" or config.parallel < 2 or not situation.model.has_kv:
            return ()
        parts, pool = kv_bytes(situation.model, config), kv_bytes(situation.model, config, unified=True)
        if not parts or not pool:
            return ()
        short = situation.find_misfit(config) is not None
        if not short and pool > 0.9 * parts:
            return ()
        finding = Finding(
            code=self.code,
            title="One cache shared by all slots would take less memory than one for each.",
            severity="hint",
            evidence=(
                Evidence(what="cache with a part for each slot", value=parts, unit="bytes", basis="predicted"),
                Evidence(what="cache as one pool of the same total", value=pool, unit="bytes", basis="predicted"),
                Evidence(
                    what="room in the pool that one user of the workload takes",
                    value=situation.workload.tokens_per_slot,
                    unit="tokens",
                    basis="measured",
                ),
            ),
            remedy="Start llama-server with `--kv-unified`, and with a smaller `-c` where not everybody needs the full length.",
            costs="No user is sure of a share: one long conversation can take the room of the others.",
        )
        return (finding,)
