"""Let a process that another one started end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_parent(*, gently: bool = False) -> None:
    """End this process as soon as the one that started it has ended, also when that was killed.

    Without it, workers of a killed parent would go on for nobody, and keep its ports. In a process that was not
    started by :mod:`multiprocessing` nothing is done.
    ``gently`` sends SIGTERM to this process, so that its handlers answer what is under way.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        if gently:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()
