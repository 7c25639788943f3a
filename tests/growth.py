"""How the processor time of a piece of work grows with its size: no test asserts seconds."""

import time
from collections.abc import Callable


def cost(work: Callable[[], object], *, tries: int = 3) -> float:
    """Return the processor seconds of the quickest of some tries."""

    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(tries))
