"""Adds slices.json to checkpoints that Orbax saves, for programs that keep their CheckpointManager.

::

    from reshard.saving.orbax_manager import SliceSave

    manager = ocp.CheckpointManager(directory)
    manager.save(step, args=SliceSave(state))       # instead of ocp.args.StandardSave(state)

Orbax writes the data as always; ``slices.json`` is added to the item before the step is committed,
and becomes visible with it. Readers see a standard checkpoint, with this package or without. A manager ties an item to
one handler. So the manager that saved an item restores it by ``manager.restore(step)`` or with
``SliceRestore(target)``; any other manager takes ``ocp.args.StandardRestore``.

The classes derive from Orbax's, so they are made on first use: Orbax is not imported before.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reshard.errors import TreeError
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.saving.slice_record import SliceRecord, record_slices
from reshard.storage.local.files import storage_errors, write_file

NAMES = ("SliceSave", "SliceRestore", "SliceHandler")

_METADATA_FILES = ("_METADATA", "_sharding", "_strings.json", "array_metadatas/*")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {NAMES}")
    return getattr(_classes(), name)


def _sums_file(process: int) -> str:
    return f"{FILE_NAME}.process_{process}"


def _check_save_args(save_args: Any) -> None:
    """Refuses casts while saving: the stored bytes would differ from those whose digests are recorded."""
    import jax

    if any(getattr(leaf, "dtype", None) is not None for leaf in jax.tree.leaves(save_args)):
        raise TreeError(
            "save_args cast arrays while they are saved, so the digests of the live arrays would not match "
            "the stored bytes; cast the arrays first, or use ocp.args.StandardSave"
        )


async def _write_sums(record: SliceRecord, directory: Any, process: int) -> None:
    """Writes this process's contributions to the digests, for the process that commits."""
    path = Path(getattr(directory, "path", directory)) / _sums_file(process)
    document = {name: f"{value:x}" for name, value in record.sums().items()}
    write_file(str(path), json.dumps(document).encode())


def _write_slices(record: SliceRecord, directory: Path) -> None:
    """Writes slices.json, from the contributions of all processes."""
    sums: dict[str, int] = {}
    parts = sorted(directory.glob(_sums_file(0)[:-1] + "*"))
    with storage_errors("read", directory):
        for part in parts:
            for name, value in json.loads(part.read_bytes()).items():
                sums[name] = sums.get(name, 0) ^ int(value, 16)
        found = sorted(path for pattern in _METADATA_FILES for path in directory.glob(pattern))
        files = {str(p.relative_to(directory)): p.read_bytes() for p in found if p.is_file()}
        for part in parts:
            part.unlink()
    write_file(str(directory / FILE_NAME), record.render(sums, files))


@cache
def _classes() -> SimpleNamespace:
    import jax
    import orbax.checkpoint as ocp

    class SliceHandler(ocp.StandardCheckpointHandler):  # type: ignore[misc]  # Orbax has no types here
        """Orbax's standard handler, with the same arguments; it also writes slices.json."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._record: SliceRecord | None = None
            # Readers of the checkpoint find Orbax's own handler recorded, not this class.
            self.typestr = ocp.StandardCheckpointHandler.typestr

        async def async_save(self, directory: Any, *, args: Any) -> Any:
            """Saves as Orbax does; the digests are computed in the background, beside its writes."""
            process = jax.process_index()
            self._record = record_slices(args.item, process, jax.process_count())
            futures = await super().async_save(directory, args=args)
            summing = _write_sums(self._record, directory, process)
            future = ocp.future.CommitFutureAwaitingContractedSignals(summing, name="slices")
            return [*(futures or []), future]

        def finalize(self, directory: Any) -> None:
            """Called by one process, after the writes of all processes and before the commit."""
            super().finalize(directory)
            if self._record is not None:
                record, self._record = self._record, None
                _write_slices(record, Path(directory))

    @ocp.args.register_with_handler(SliceHandler, for_save=True)
    @dataclasses.dataclass
    class SliceSave(ocp.args.StandardSave):  # type: ignore[misc]  # Orbax has no types here
        """Like ``ocp.args.StandardSave``, with slice metadata; TreeError if it casts."""

        def __post_init__(self) -> None:
            super().__post_init__()
            _check_save_args(self.save_args)

    @ocp.args.register_with_handler(SliceHandler, for_restore=True)
    @dataclasses.dataclass
    class SliceRestore(ocp.args.StandardRestore):  # type: ignore[misc]  # Orbax has no types here
        """Like ``ocp.args.StandardRestore``, for the manager that saved; other managers take either."""

    return SimpleNamespace(
        SliceHandler=SliceHandler, SliceSave=SliceSave, SliceRestore=SliceRestore
    )
