"""Python's cycle collector, in a process that serves.

Its defaults look at everything young after every 700 new objects, and at everything old ever again. A long request is
a million objects that all live until it is answered: reading it took ten times as long as with the collector off,
and the event loop stood still meanwhile.
"""

import gc

YOUNG_OBJECTS = 100_000
"""About 5 ms of looking."""


def settle() -> None:
    """To be called once, when the process has made what it lives with: that is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
