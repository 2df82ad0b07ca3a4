"""TensorStore, where its threads are about to work. It ends a process that was forked after they had begun to.

They end where they have nothing to do, so that those of this project's own calls are remembered. Those of others (Orbax)
are looked for when the process forks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from reshard.storage.host import forked_error, thread_names

_THREAD = "ts_pool_worker"

_has_worked = False
_is_child = False
"""Whether this process was forked from one in which TensorStore's threads had worked."""


def tensorstore(action: str) -> Any:
    """The package, to do ``action`` with. StorageError where that would end the process.

    Opening an array or a store in memory needs no threads; then import the package itself.
    """
    global _has_worked
    if _is_child:
        raise forked_error(action, "TensorStore", "TensorStore would end it")
    import tensorstore as ts

    _has_worked = True
    return ts


def _before_fork() -> None:
    global _has_worked
    if "tensorstore" in sys.modules:
        _has_worked = _has_worked or _THREAD in thread_names()


def _in_child() -> None:
    global _is_child
    _is_child = _is_child or _has_worked


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
