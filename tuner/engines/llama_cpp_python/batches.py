"""Batches built before the clock starts. Each keeps the arrays it points to: llama_batch holds raw pointers only."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from tuner.engines.llama_cpp_python.native import Native

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tuner.engines.llama_cpp_python.tokens import Ids

_I32 = ctypes.POINTER(ctypes.c_int32)
_I8 = ctypes.POINTER(ctypes.c_int8)


class Batch:
    """One llama_batch and the places whose logits come out."""

    __slots__ = ("_keep", "outputs", "value")

    def __init__(self, native: Native, *, ids: Ids, positions: Ids, slots: Ids, wanted: npt.NDArray[np.int8]) -> None:
        import numpy as np

        count = len(ids)
        owners = np.ones(count, dtype=np.int32)
        addresses = (slots.ctypes.data + slots.itemsize * np.arange(count, dtype=np.uint64)).astype(np.uint64)
        self._keep = (ids, positions, slots, wanted, owners, addresses)
        self.outputs: tuple[int, ...] = tuple(int(i) for i in np.flatnonzero(wanted))
        self.value: Any = native.api.llama_batch(
            n_tokens=count,
            token=_point(ids, _I32),
            pos=_point(positions, _I32),
            n_seq_id=_point(owners, _I32),
            seq_id=_point(addresses, ctypes.POINTER(_I32)),
            logits=_point(wanted, _I8),
        )


def build_prompt_batches(native: Native, prompts: list[Ids], *, start: int, most: int, want_last: bool = True) -> list[Batch]:
    """The prompts of slots 0, 1, … from position `start`, one after another, cut at `most` tokens.

    Only the last token of each prompt gives logits (none with want_last False).
    """
    import numpy as np

    ids = np.concatenate(prompts).astype(np.int32)
    positions = np.concatenate([np.arange(start, start + len(p), dtype=np.int32) for p in prompts])
    slots = np.concatenate([np.full(len(p), slot, dtype=np.int32) for slot, p in enumerate(prompts)])
    wanted = np.zeros(len(ids), dtype=np.int8)
    if want_last:
        wanted[np.cumsum([len(p) for p in prompts]) - 1] = 1
    cuts = [slice(a, a + most) for a in range(0, len(ids), most)]
    return [Batch(native, ids=ids[c], positions=positions[c], slots=slots[c], wanted=wanted[c]) for c in cuts]


def build_step_batches(native: Native, answers: list[Ids], *, start: int) -> list[Batch]:
    """One batch a step: the next token of every slot, all with logits, from position `start`."""
    import numpy as np

    table = np.ascontiguousarray(np.stack(answers, axis=1), dtype=np.int32)
    slots = np.arange(len(answers), dtype=np.int32)
    wanted = np.ones(len(answers), dtype=np.int8)
    return [
        Batch(native, ids=row, positions=np.full(len(answers), start + step, dtype=np.int32), slots=slots, wanted=wanted)
        for step, row in enumerate(table)
    ]


def _point(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, kind)
