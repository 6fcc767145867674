"""Many small objects at once, without Python's search for unreachable ones."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from looking for unreachable objects meanwhile.

    A read makes a few objects for each worker, which refer to nothing that refers to them. Python
    would look through all of them again and again: of 72,000 ages that is more than half of the
    time, and of judging so many workers a quarter.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
