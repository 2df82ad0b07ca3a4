"""The process of each worker from which the tests fork servers and runs that are killed: it has imported what they use, and has used nothing.

``multiprocessing`` has one such process for all of a program, and only the first list of modules counts. With lists of their own, the
servers of a worker that first killed a conversion would import their modules at each start, which takes them two seconds.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

MODULES = [
    "tests.server.imported",
    "tests.robustness.crash.killing",
    "tests.robustness.buckets.children",
]


def forkserver() -> ForkServerContext:
    """The context whose processes are forks of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
