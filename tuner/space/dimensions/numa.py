"""Memory of several nodes."""

from __future__ import annotations

from typing import ClassVar, get_args

from tuner.runconfig import Numa as Setting
from tuner.space.base import Absent, Cost, Dimension, Domain, Phase, SpaceSituation
from tuner.space.parsing import read_word


class NumaPolicy(Dimension):
    """How threads and memory are placed on a machine with several NUMA nodes (sockets, or chiplets set up as nodes).

    Memory of another node is slower and shares a narrow link, and decode is ruled by memory. distribute spreads threads
    over all nodes, isolate keeps them on the node where the process started, numactl takes the CPU map that numactl gave.
    With off, the kernel decides, and pages end up where they were first touched; for a fair comparison the page cache must
    be dropped between policies. On one node it means nothing. It is set once per process. (ggml_numa_init.)
    """

    name: ClassVar[str] = "numa"
    title: ClassVar[str] = "NUMA policy"
    affects: ClassVar[frozenset[Phase]] = frozenset({"prefill", "decode"})
    cost: ClassVar[Cost] = "process"

    def find_domain(self, situation: SpaceSituation) -> Domain | Absent:
        nodes = [node for node in situation.hardware.cpu.numa_nodes if node.cpus]
        if len(nodes) < 2:
            return Absent(reason="all memory is equally near (one NUMA node)")
        return Domain(values=("off", "distribute", "isolate"), ordered=False)

    def find_default(self, situation: SpaceSituation) -> str:
        del situation
        return "off"

    def parse_value(self, value: object) -> str:
        return read_word(self.name, value, get_args(Setting))
