"""Memory that was needed for a moment, given back to the system."""

import ctypes
from typing import Final

import pyarrow as pa

#: Of glibc; others give back by themselves, or not at all.
_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give back what Arrow's allocator and C's hold without need.

    Both keep what was freed, in case it is asked for again: after one part of a batch of 72,000
    workers that is 200 MB more than before it.
    """
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
