"""MAC14: CUDA numbers the cards otherwise than the driver."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation

_ORDER: Final = "CUDA_DEVICE_ORDER=PCI_BUS_ID"


class CudaOrder(Rule):
    """With several unlike GPUs there are two ways of numbering them. CUDA, which llama.cpp uses, puts the fastest first. The
    driver and `nvidia-smi` go by the slots in the machine. So "GPU 0" may be the big card for one and the small card for the
    other, and settings such as `main_gpu`, `tensor_split` or CUDA_VISIBLE_DEVICES hit the wrong one.

    The rule speaks when there are unlike cards and nothing fixes the order. The remedy is one line in the environment of
    everything you start: `export CUDA_DEVICE_ORDER=PCI_BUS_ID`. Then both count the same way, and the numbers that rooftune
    shows hold.

    When this is wrong: where everything is addressed by the cards' own identifiers (UUIDs), the order does not matter. Changing
    it turns the meaning of numbers in scripts that you already have.
    """

    code: ClassVar[str] = "MAC14"
    title: ClassVar[str] = "Order of unlike GPUs"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        machine = situation.hardware
        visible = [gpu for gpu in machine.gpus if gpu.cuda_ordinal is not None]
        if len(visible) < 2 or not any(_ORDER in note for note in machine.notes):
            return ()
        finding = Finding(
            code=self.code,
            title="CUDA and the driver may number these unlike GPUs differently.",
            severity="hint",
            evidence=tuple(
                Evidence(what=f"GPU {gpu.index} by the driver", value=gpu.name or "unknown", basis="measured")
                for gpu in visible
            ),
            remedy=f"Run `export {_ORDER}` before you start anything that uses them.",
        )
        return (finding,)
