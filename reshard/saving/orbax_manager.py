"""Slice metadata beside Orbax's own saving: for programs that keep their CheckpointManager.

::

    from reshard.saving.orbax_manager import SliceSave

    manager = ocp.CheckpointManager(directory)
    manager.save(step, args=SliceSave(state))       # instead of ocp.args.StandardSave(state)

Orbax writes the data, as it would; ``slices.json`` is added to the item before the step is committed,
and becomes visible with it. To readers it is a standard checkpoint, with this package or without. A
manager ties an item to one handler, so the one that saves restores by ``manager.restore(step)`` or with
``SliceRestore(target)``; any other takes ``ocp.args.StandardRestore``.

The classes are made when they are first asked for, since they derive from Orbax's.
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
from reshard.storage.local import storage_errors, write_file

NAMES = ("SliceSave", "SliceRestore", "SliceHandler")

_METADATA_FILES = ("_METADATA", "_sharding", "_strings.json", "array_metadatas/*")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {NAMES}")
    return getattr(_classes(), name)


def _sums_file(process: int) -> str:
    return f"{FILE_NAME}.process_{process}"


def _check_save_args(save_args: Any) -> None:
    """A cast while saving would make the stored bytes differ from those that are summed up."""
    import jax

    if any(getattr(leaf, "dtype", None) is not None for leaf in jax.tree.leaves(save_args)):
        raise TreeError(
            "save_args cast arrays while they are saved, so the digests of the live arrays would not be "
            "those of what is stored; cast the arrays first, or use ocp.args.StandardSave"
        )


async def _write_sums(record: SliceRecord, directory: Any, process: int) -> None:
    """This process's part of the digests, for the process that commits."""
    path = Path(getattr(directory, "path", directory)) / _sums_file(process)
    document = {name: f"{value:x}" for name, value in record.sums().items()}
    write_file(str(path), json.dumps(document).encode())


def _write_slices(record: SliceRecord, directory: Path) -> None:
    """slices.json, from what every process summed up."""
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

    class SliceHandler(ocp.StandardCheckpointHandler):  # type: ignore[misc]
        """Orbax's standard handler, which also writes slices.json; takes the same arguments."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._record: SliceRecord | None = None
            # What is recorded as the handler: readers need not know this class.
            self.typestr = ocp.StandardCheckpointHandler.typestr

        async def async_save(self, directory: Any, *, args: Any) -> Any:
            """Save as Orbax does; the digests are summed up in the background with its writes."""
            process = jax.process_index()
            self._record = record_slices(args.item, process, jax.process_count())
            futures = await super().async_save(directory, args=args)
            summing = _write_sums(self._record, directory, process)
            future = ocp.future.CommitFutureAwaitingContractedSignals(summing, name="slices")
            return [*(futures or []), future]

        def finalize(self, directory: Any) -> None:
            """Called by one process, after every process's writes and before the commit."""
            super().finalize(directory)
            if self._record is not None:
                record, self._record = self._record, None
                _write_slices(record, Path(directory))

    @ocp.args.register_with_handler(SliceHandler, for_save=True)
    @dataclasses.dataclass
    class SliceSave(ocp.args.StandardSave):  # type: ignore[misc]
        """As ``ocp.args.StandardSave``, with slice metadata; TreeError where it casts."""

        def __post_init__(self) -> None:
            super().__post_init__()
            _check_save_args(self.save_args)

    @ocp.args.register_with_handler(SliceHandler, for_restore=True)
    @dataclasses.dataclass
    class SliceRestore(ocp.args.StandardRestore):  # type: ignore[misc]
        """As ``ocp.args.StandardRestore``, for the manager that saves; others take either."""

    return SimpleNamespace(
        SliceHandler=SliceHandler, SliceSave=SliceSave, SliceRestore=SliceRestore
    )
