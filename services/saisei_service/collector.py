"""Python's cyclic garbage collector in a process that serves for long."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """What is loaded now stays for ever, so that the collector need not look at it again, and rarely at what follows.

    Nearly all that a service makes is freed by reference counts; a full collection of the modules alone takes as long
    as a hundred small requests, and all of them wait for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
