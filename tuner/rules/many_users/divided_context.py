"""USR02: the slots divide the context, and each gets too little."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import is_possible
from tuner.runconfig import pad256, pad_context


class DividedContext(Rule):
    """The context that you set (`-c` in llama-server) is not what each conversation gets. It is the sum over all slots: with
    `-c 8192 -np 2` each slot has 4096 tokens. Whoever raises the number of slots and leaves the context makes it shorter for
    everybody, and long conversations break off.

    The rule speaks when a slot has less room than one turn of your workload needs: history, prompt and answer together. The
    remedy is a context of that size times the number of slots; the command line is given. Each slot is rounded up to a multiple
    of 256 tokens.

    When this is wrong: with `--kv-unified` all slots share one pool and each may use all of it, as long as the others leave
    something. Then the sum of what is in use counts, not the share. llama-server uses such a pool when it is not told a number
    of slots.
    """

    code: ClassVar[str] = "USR02"
    title: ClassVar[str] = "Slots divide the context"
    symptoms: ClassVar[frozenset[str]] = frozenset({"many-users", "long-chat", "out-of-memory"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        config, need = situation.config, situation.workload.tokens_per_slot
        slots = config.parallel
        if slots < 2 or config.ctx_size <= 0:
            return ()
        share = pad_context(config.ctx_size, slots) // slots
        if share >= need:
            return ()
        size = pad256(need) * slots
        change: dict[str, Any] = {"ctx_size": size} if is_possible(situation, {"ctx_size": size}) else {}
        finding = Finding(
            code=self.code,
            title="Each conversation gets only its share of the context, which is too little for this workload.",
            severity="stops",
            evidence=(
                Evidence(what="context in all", value=config.ctx_size, unit="tokens", basis="measured"),
                Evidence(what="slots", value=slots, unit="slots", basis="measured"),
                Evidence(what="context per slot", value=share, unit="tokens", basis="measured"),
                Evidence(what="one turn of the workload", value=need, unit="tokens", basis="measured"),
            ),
            change=change,
            remedy=f"{share} tokens per slot: use `-c {size} -np {slots}` for {pad256(need)} per slot, or `--kv-unified`, "
            "with which one long conversation can take the room of the others."
            + ("" if change else " So much does not fit here: use fewer slots."),
            costs="Memory for a larger cache." if change else "",
        )
        return (finding,)
