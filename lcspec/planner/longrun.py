"""The rate that is reached in the long run, over that of plain decoding: what a second is worth in tokens."""

from __future__ import annotations

from dataclasses import dataclass

# It covers about this many tokens' worth of plain decoding, and is believed from the second figure on.
MEMORY = 64.0
KNOWN = 16.0
HIGHEST = 100.0


@dataclass
class LongRun:
    """Running sums, both forgetting.

    Attributes:
        emitted: tokens emitted.
        plain: tokens that plain decoding would have emitted in the same time.
    """

    emitted: float = 0.0
    plain: float = 0.0

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of plain decoding, at least 1; None before it is known."""
        return max(1.0, self.emitted / self.plain) if self.plain >= KNOWN else None

    def beats(self, speedup: float) -> bool:
        """Whether it is known to be more than this."""
        return self.plain >= KNOWN and self.emitted > speedup * self.plain

    def add(self, emitted: float, plain: float) -> None:
        """A step emitted so many tokens in the time of `plain` plain ones."""
        keep = max(0.0, 1.0 - plain / MEMORY)
        self.emitted = self.emitted * keep + emitted
        self.plain = self.plain * keep + plain

    @classmethod
    def of(cls, speedup: float | None) -> LongRun:
        """Begin with an earlier session's figure. It counts for little, so that this text's soon decides.

        Raises:
            ValueError: that is no speed-up.
        """
        if speedup is None:
            return cls()
        if not 1.0 <= speedup <= HIGHEST:
            raise ValueError("not a speed-up")
        return cls(speedup * KNOWN, KNOWN)
