"""MAC06: the memory lies in several nodes."""

from __future__ import annotations

from typing import Any, ClassVar

from tuner.hardware.record import NumaNode
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.points import count_memory, is_possible


class NumaNodes(Rule):
    """A machine with two processors, and some large single ones, has its memory in several parts, the NUMA nodes. Each core is
    close to one of them; the others it reaches over a narrow link. How fast an answer is written depends on how fast memory is
    read, so it matters where the weights lie. Without any rule they lie wherever they were first read, often all in one node,
    while half of the threads are in the other. A public report tells of 4 tokens per second over two nodes and 8 on one of
    them.

    If the model fits into one node, the surest way is to stay there: `numactl --cpunodebind=0 --membind=0`, with as many
    threads as that node has cores. If it does not fit, `--numa distribute` spreads threads and memory evenly. Which one wins is
    known only by trying, so the change proposed is a trial to compare. Let the system forget the file before each trial (`echo
    3 | sudo tee /proc/sys/vm/drop_caches`), or the weights stay where the trial before left them.

    When this is wrong: on some machines one node alone has too little memory speed, and both together are faster. A virtual
    machine may show nodes that are none. With all layers on a GPU it matters little, and the rule is silent.
    """

    code: ClassVar[str] = "MAC06"
    title: ClassVar[str] = "Memory in several NUMA nodes"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        nodes = [node for node in situation.hardware.cpu.numa_nodes if node.cpus]
        if len(nodes) < 2 or situation.config.numa != "off" or _is_offloaded(situation):
            return ()
        near = next((node for node in nodes if _holds_model(situation, node)), None)
        wish = _stay(situation, near) if near else {"numa": "distribute"}
        finding = Finding(
            code=self.code,
            title="This machine's memory lies in several nodes, and nothing says which of them to use.",
            severity="slows",
            evidence=(
                Evidence(what="nodes with processors", value=len(nodes), unit="nodes", basis="measured"),
                *(
                    Evidence(what=f"memory of node {node.index}", value=node.memory_bytes, unit="bytes", basis="measured")
                    for node in nodes
                    if node.memory_bytes is not None
                ),
            ),
            change=wish if is_possible(situation, wish) else {},
            remedy=_advise(near, wish),
            costs="The cores of the other nodes stay idle." if near else "",
        )
        return (finding,)


def _is_offloaded(situation: Situation) -> bool:
    full, layers = situation.model.full_offload, situation.config.n_gpu_layers
    return bool(situation.hardware.devices) and full is not None and (layers < 0 or layers >= full)


def _holds_model(situation: Situation, node: NumaNode) -> bool:
    footprint = count_memory(situation, situation.config)
    return node.memory_bytes is not None and footprint.known_bytes < 0.9 * node.memory_bytes


def _stay(situation: Situation, node: NumaNode) -> dict[str, Any]:
    """All threads on one node: as many as it has cores."""
    cpu = situation.hardware.cpu
    cores = max(1, len(node.cpus) * cpu.physical_cores // max(1, cpu.logical_cpus))
    return {"numa": "isolate", "threads": cores, "threads_batch": cores}


def _advise(near: NumaNode | None, wish: dict[str, Any]) -> str:
    if near is None:
        return "Compare `--numa distribute` with what you have now; the model is too large for one node."
    pinned = f"numactl --cpunodebind={near.index} --membind={near.index} llama-server --numa numactl -t {wish['threads']}"
    return f"Compare with a run on one node: `{pinned}`, or `--numa isolate -t {wish['threads']}`, or `--numa distribute`."
