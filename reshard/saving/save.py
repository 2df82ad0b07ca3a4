"""``reshard.save``: live arrays to a standard Orbax checkpoint, with slice metadata and digests."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from reshard.errors import MissingPackageError, PlanError, StorageError

if TYPE_CHECKING:
    from reshard.formats.base import Style
    from reshard.saving.plan import SaveOptions
    from reshard.saving.run import Run

TIMEOUT_S = 1800.0
"""How long the processes of a group wait for one another at each step."""


class SaveHandle:
    """A save that goes on in the background; made by ``save(..., wait=False)``.

    The interpreter does not exit before it has ended. An error that nobody waits for is logged.
    """

    def __init__(self, path: str, run: Run) -> None:
        self._path = path
        self._run: Run | None = run
        self._error: BaseException | None = None
        thread = threading.Thread(target=self._finish, name="reshard.save", daemon=False)
        self._thread: threading.Thread | None = thread
        try:
            thread.start()
        except RuntimeError:
            # The system gives no thread, so it is saved before the handle is there.
            self._thread = None
            self._finish()

    def wait(self) -> None:
        """Return once the checkpoint is there; raises what went wrong, each time it is called."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def _finish(self) -> None:
        run, self._run = self._run, None
        try:
            if run is not None:
                run.finish()
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
    """Save a tree of live arrays as an Orbax checkpoint, which appears whole or not at all.

    Replicas are written once, each chunk by a process that holds it; ``slices.json`` records who
    held what and a digest of every tensor. Under ``jax.distributed`` every process calls it, with
    the same arguments and a path that all share.

    Args:
        path: a folder that is not there yet; with ``step``, the folder of a training run.
        tree: nested containers (anything that jax takes for a tree) of jax and numpy arrays,
            ShardedVariables, PRNG keys, Python numbers, text and None.
        layout: of numpy arrays, to be recorded: a LayoutMap, a layout file, or a tree of
            TensorLayouts or shardings. jax arrays have their own, which it must not contradict.
        step: write this step of the run, which stock ``CheckpointManager(path).restore(step)`` and
            ``reshard.restore(path, step=step)`` read. Its folder is called as those of the steps that
            are there, else by the number alone.
        wait: False returns a ``SaveHandle`` once arrays of the tree may be changed, deleted or
            donated, and goes on in the background.
        chunks_for: layouts (LayoutMaps, layout files) or DeviceMeshes whose holders will read the
            checkpoint: chunks are cut so that each reads only what it needs.
        compression: ``none``, ``zstd[:level]``, ``gzip[:level]`` or ``blosc``.
        chunk_bytes: chunks above this are subdivided; the default is 256 MiB.
        max_memory: bytes (or ``"512MiB"``) for chunks on their way to disk, beside the arrays. With
            ``wait=False`` the copies of arrays on devices come on top.
        workers: threads that write; the default is the number of processors, at least 2 and at most 16.
        ocdbt: one OCDBT database instead of plain files; for a single process.
        style: form of the checkpoint, ``"v0"`` or ``"v1"`` as Orbax calls them.
        overwrite: whether a checkpoint that is there may be replaced.
        timeout: seconds that processes of a group wait for one another at each step.

    Raises TreeError, naming every leaf that cannot be saved; LayoutError; PlanError;
    MemoryBudgetError; MissingPackageError without jax; TargetExistsError, also for a step that is
    there; StorageError where the file system refuses. Whatever is raised, nothing half-done is visible
    at ``path``.

    >>> save("run", state, step=5)  # doctest: +SKIP
    """
    _refuse_no_jax()
    from reshard.formats.choose import step_number
    from reshard.formats.registry import target_path
    from reshard.saving.given_layouts import given_layout, wanted_layouts
    from reshard.saving.run import begin
    from reshard.saving.step_folder import STEP_ITEM

    if step is not None:
        step = step_number(step)
    options = replace(
        _options(compression, chunk_bytes, max_memory, workers, ocdbt, style, overwrite, timeout),
        chunks_for=wanted_layouts(chunks_for),
        item=STEP_ITEM if step is not None and style == "v0" else "",
    )
    if not isinstance(path, str | bytes | os.PathLike):
        raise StorageError(f"the path is {path!r}; expected a path")
    target = os.path.abspath(target_path(os.fsdecode(path)))  # noqa: PTH100  keeps links as they are
    run = begin(target, tree, given_layout(layout), options, timeout, step)
    if wait:
        run.finish()
        return None
    run.keep()
    return SaveHandle(target, run)


def _refuse_no_jax() -> None:
    if find_spec("jax") is None:
        raise MissingPackageError(
            "saving live trees needs jax, which is not installed; pip install 'reshard[jax]'"
        )


def _options(
    compression: str,
    chunk_bytes: int | str | None,
    max_memory: int | str | None,
    workers: int | None,
    ocdbt: bool,
    style: Style,
    overwrite: bool,
    timeout: float,
) -> SaveOptions:
    import jax

    from reshard.arguments import bytes_of, check_choice, check_positive
    from reshard.engine.limits import limits_of
    from reshard.planning.chunking import SPLIT_ABOVE_BYTES
    from reshard.saving.plan import SaveOptions

    limits, largest = limits_of(max_memory, workers), bytes_of("chunk_bytes", chunk_bytes)
    options = SaveOptions(
        max_memory=limits.max_memory,
        workers=limits.workers,
        encoding=_encoding(compression),
        chunk_bytes=SPLIT_ABOVE_BYTES if largest is None else largest,
        style=style,
        ocdbt=ocdbt,
        overwrite=overwrite,
    )
    check_positive("chunk_bytes", options.chunk_bytes, "bytes, such as 256MiB")
    check_choice("style", style, ("v0", "v1"))
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise PlanError(f"timeout is {timeout!r}; expected seconds, such as {TIMEOUT_S:g}")
    if ocdbt and jax.process_count() > 1:
        raise PlanError(
            "ocdbt=True: one database cannot be written by several processes; leave it out"
        )
    return options


def _encoding(compression: str) -> Any:
    from reshard.formats.compression import parse_compression

    found = parse_compression(compression)
    if found is None:
        raise PlanError(
            "compression 'keep' is for converting; live arrays have none: choose none, zstd, gzip or blosc"
        )
    return found
