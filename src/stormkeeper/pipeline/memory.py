"""Memory that was needed for a moment, given back to the system."""

import contextlib
import ctypes
import time
from typing import Final

import pyarrow as pa

#: Of glibc; others give back by themselves, or not at all.
_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)

#: For so long what was freed is kept, in seconds. Whoever needs it again sooner has the system
#: clear it first: once a second, that was a sixth of the driver's time.
_KEPT_SECS: Final = 10.0


class _Giving:
    def __init__(self) -> None:
        self._next_at = 0.0

    def __call__(self) -> None:
        """Give back what Arrow's allocator and C's hold without need; seldom enough to be cheap.

        Both keep what was freed, in case it is asked for again: after one part of a batch of 72,000
        workers that is 200 MB more than before it.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _KEPT_SECS
        pa.default_memory_pool().release_unused()
        if _TRIM is not None:
            _TRIM(0)


give_back: Final = _Giving()

with contextlib.suppress(NotImplementedError):  # where Arrow was built without it
    pa.jemalloc_set_decay_ms(round(1000 * _KEPT_SECS))
