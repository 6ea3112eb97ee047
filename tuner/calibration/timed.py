"""One timed batch of a synthetic model, and how much of each kind of work was in it: the terms of the sum that is fitted.

Counts as `tuner.roofline.work` and `tuner.roofline.timing` do, so that a prediction adds up what the fit took apart.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tuner.calibration.synthetic import Shape, count_bytes
from tuner.memory.record import HOST
from tuner.roofline.work import count_seen, count_waste
from tuner.runconfig import pad256

Cache = tuple[str, str, bool]
"""Types of K and V, and flash attention."""

_F32: Final = 4


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of batch of one model, timed."""

    shape: Shape
    """The model."""
    cache: Cache
    """Types of K and V, and flash attention."""
    history: bool
    """Timed at several lengths of the history, for attention's sake."""
    tokens: int
    """Tokens computed at once; only the last gave logits."""
    depth: int
    """Tokens in the cache before it."""
    threads: int
    """Threads at work; 0 on a device."""
    seconds: tuple[float, ...]
    """Time of one batch, for each round, s."""
    device: str = HOST
    """Where all layers were."""
    cache_stays: bool = False
    """The cache stayed in main memory, so that every layer crossed the link twice more."""
    sizes: bool = False
    """Timed for how reading depends on the size of the model."""
    marked: str = ""
    """Why these times are doubtful."""

    @property
    def operations(self) -> float:
        """Of attention. The processor's flash attention skips what the mask hides; a device is taken to look at all cells.

        With a cache that stays behind, the processor looks.
        """
        return 4.0 * self.shape.n_head * self.shape.head_size * self.shape.n_layer * self._looks

    @property
    def _looks(self) -> float:
        end = self.depth + self.tokens
        if not self.cache[2] or (self.device != HOST and not self.cache_stays):
            return float(self.tokens * pad256(end))
        tiles = self.cache[0] == self.cache[1] == "f16"
        seen = count_seen(self.tokens, end, alone=self.tokens == 1, tiles=tiles)
        return seen * count_waste(self.tokens, self.shape.n_head, self.threads) if tiles else seen

    @property
    def whole_bytes(self) -> int:
        """Weights that meet every token."""
        layers = count_bytes(self.shape.format, self.shape.layer_elements) * self.shape.n_layer
        return layers - self._last_bytes

    @property
    def late_bytes(self) -> int:
        """Weights that meet only the token with logits: the last layer's behind its attention, and the output matrix."""
        return self._last_bytes + count_bytes(self.shape.format, self.shape.output_elements)

    @property
    def _last_bytes(self) -> int:
        return count_bytes(self.shape.format, self.shape.feed_forward_elements)

    @property
    def crossings(self) -> int:
        """Times that data crosses the link: the hidden state there and logits back, and the cache's way if it stayed."""
        return 0 if self.device == HOST else 2 + self._trips

    @property
    def crossed_bytes(self) -> int:
        """What crosses it."""
        hidden = (1 + self._trips) * self.tokens * self.shape.n_embd
        return 0 if self.device == HOST else _F32 * (hidden + self.shape.n_vocab)

    @property
    def _trips(self) -> int:
        return 2 * self.shape.n_layer if self.cache_stays else 0
