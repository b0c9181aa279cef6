"""How seldom Python looks for cyclic garbage while rows are made.

Rows leave none: over thousands of them no collection found a single object, yet a fifth of the CPU time went
there, most of it into a few full ones that walk over every imported module and stop the event loop for a
tenth of a second and more (`tests/bench/profiles.md`).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New containers between two collections; Python's own 700 is a collection every dozen rows."""

_USUAL: Final = gc.get_threshold()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Leave what exists now out of every collection inside, and collect what is new seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *_USUAL[1:])
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)
        gc.unfreeze()
