"""``reshard.save``: saves live arrays as a standard Orbax checkpoint, with slice metadata and digests."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from reshard.errors import StorageError
from reshard.log import log
from reshard.saving.options import check_jax

if TYPE_CHECKING:
    from reshard.formats.contents import Style
    from reshard.saving.run import OpenSave

TIMEOUT_S = 1800.0
"""Seconds that the processes of a group wait for each other at each step."""


class SaveHandle:
    """A save in the background; ``save(..., wait=False)`` returns one.

    The interpreter exits only after the save has ended. An error is logged, and raised by ``wait``.
    """

    def __init__(self, path: str, opened: OpenSave) -> None:
        self._path = path
        self._opened: OpenSave | None = opened
        self._error: BaseException | None = None
        thread = threading.Thread(target=self._finish, name="reshard.save", daemon=False)
        self._thread: threading.Thread | None = thread
        try:
            thread.start()
        except RuntimeError:
            # The system allows no more threads, so the save runs in this one.
            self._thread = None
            self._finish()

    def wait(self) -> None:
        """Returns when the checkpoint is there; raises the error of a failed save, at each call."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """True once the save has ended, with or without an error."""
        return self._thread is None or not self._thread.is_alive()

    def _finish(self) -> None:
        from reshard.saving.run import finish_save

        opened, self._opened = self._opened, None
        try:
            if opened is not None:
                finish_save(opened)
                log("saved %r", self._path)
        except BaseException as error:  # noqa: BLE001  raised again by wait
            self._error = error
            logging.getLogger(__name__).error("saving %r failed: %s", self._path, error)


def save(
    path: str | os.PathLike[str],
    tree: Any,
    layout: Any = None,
    *,
    step: int | None = None,
    wait: bool = True,
    chunks_for: Iterable[Any] = (),
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    ocdbt: bool = False,
    style: Style = "v0",
    overwrite: bool = False,
    timeout: float = TIMEOUT_S,
) -> SaveHandle | None:
    """Saves a tree of live arrays as an Orbax checkpoint, which appears whole or not at all.

    Replicas are written once, each chunk by a process that has it. ``slices.json`` records the slices of each
    process, and a digest of every tensor. Under ``jax.distributed`` every process calls it, with the same arguments and a
    path in a bucket or on a file system that all share.

    Args:
        path: a folder that does not exist yet, on a disk or in a bucket (``gs://``, ``s3://``, ``az://``); with ``step``, the
            folder of a training run.
        tree: nested containers (any jax pytree) of jax and numpy arrays, ShardedVariables, PRNG keys,
            Python numbers, text and None.
        layout: the layouts to record for numpy arrays: a LayoutMap, a layout file, or a tree of
            TensorLayouts or shardings. jax arrays have their own layouts, which it must not contradict.
        step: the step of the run to write, which stock ``CheckpointManager(path).restore(step)`` and
            ``reshard.restore(path, step=step)`` read. Its folder is named like those of the other steps;
            the first step's is the number alone.
        wait: False returns a ``SaveHandle`` as soon as the arrays may be changed, deleted or donated, and
            saves in the background.
        chunks_for: layouts (LayoutMaps, layout files) or DeviceMeshes of later readers: chunks are cut so
            that each of their devices reads only the bytes that it needs.
        compression: ``none``, ``zstd[:level]``, ``gzip[:level]`` or ``blosc``.
        chunk_bytes: chunks above this are subdivided; the default is 256 MiB, in a bucket 8 to 64 MiB, by ``max_memory``.
        max_memory: bytes (or ``"512MiB"``) for chunks on their way to the target, beside the arrays. With
            ``wait=False`` the copies of arrays on devices come on top.
        workers: threads that write; the default is the number of processors, at least 2 and at most 16, and for a bucket up
            to 12 where ``max_memory`` has 64 MiB for each.
        ocdbt: write one OCDBT database instead of plain files; only for a single process, and not in a bucket.
        style: ``"v0"`` or ``"v1"``, Orbax's names of the two forms of a checkpoint.
        overwrite: replace an existing checkpoint; in a bucket it is gone as soon as the save begins.
        timeout: seconds that the processes of a group wait for each other at each step.

    Raises TreeError, naming every leaf that cannot be saved; LayoutError; PlanError;
    MemoryBudgetError; MissingPackageError without jax; TargetExistsError, also for an existing step;
    StorageError if the file system or the bucket refuses, and in a process that was forked after a bucket was used. After an
    error readers never take unfinished output at ``path`` for a checkpoint.

    >>> save("run", state, step=5)  # doctest: +SKIP
    """
    check_jax("saving live trees")
    from reshard.formats.choose import step_number
    from reshard.saving.options import given_layouts, save_options
    from reshard.saving.processes import group_of
    from reshard.saving.run import finish_save, open_save, plan_together, snapshot

    step = None if step is None else step_number(step)
    target = _target(path)
    options = save_options(
        target,
        is_step=step is not None,
        chunks_for=chunks_for,
        compression=compression,
        chunk_bytes=chunk_bytes,
        max_memory=max_memory,
        workers=workers,
        ocdbt=ocdbt,
        style=style,
        overwrite=overwrite,
        timeout=timeout,
    )
    given = given_layouts(layout)
    group = group_of(target if step is None else f"{target}/{step}", options.timeout_s)
    plan = plan_together(group, tree, given, options, target, step)
    opened = open_save(group, plan, options, target, step)
    if wait:
        finish_save(opened)
        log("saved %r", target if step is None else f"{target}, step {step}")
        return None
    snapshot(opened)
    return SaveHandle(target, opened)


def _target(path: str | os.PathLike[str]) -> str:
    """The URL of a bucket, or the absolute path, links kept: the caller may change its working directory during the save."""
    from reshard.storage.targets import absolute_text

    if not isinstance(path, str | bytes | os.PathLike):
        raise StorageError(f"the path is {path!r}; expected a path")
    return absolute_text(os.fsdecode(path))
