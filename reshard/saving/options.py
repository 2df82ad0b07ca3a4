"""SaveOptions: the options of a save, checked once.

Refuses calls that need jax if it is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from reshard.arguments import bytes_of, check_choice, check_positive
from reshard.engine.limits import limits_of
from reshard.errors import MissingPackageError, PlanError
from reshard.formats.chunking import SPLIT_ABOVE_BYTES, object_chunk_bytes
from reshard.formats.contents import Encoding, Style, parse_compression
from reshard.formats.format import refuse_database
from reshard.formats.orbax.format import OrbaxForm
from reshard.planning.target_layouts import Layout
from reshard.saving.given_layouts import reader_layouts
from reshard.storage.base import ON_DISK, Traits
from reshard.storage.location import locate
from reshard.version import how_to_install


def check_jax(what: str) -> None:
    """Raises MissingPackageError if jax is not installed; ``what`` names the call that needs it."""
    if find_spec("jax") is None:
        raise MissingPackageError(
            f"{what} needs jax, which is not installed; {how_to_install('jax')}"
        )


STEP_ITEM = "default"
"""The item that CheckpointManager saves in a step if the caller names none."""


class SaveOptions(Struct, frozen=True):
    """The options of a save, checked.

    Attributes:
        max_memory: most bytes of chunks on their way to disk.
        workers: threads that write.
        chunk_bytes: chunks above this are subdivided.
        timeout_s: seconds that the processes of a group wait for each other at each step.
        chunks_for: layouts of later readers, whose shards should be whole chunks.
        item: the tree's item and its folder; "" for a tree without an item.
        traits: of the place of the target.
    """

    max_memory: int
    workers: int
    encoding: Encoding
    chunk_bytes: int
    timeout_s: float
    chunks_for: tuple[Layout, ...] = ()
    style: Style = "v0"
    ocdbt: bool = False
    overwrite: bool = False
    item: str = ""
    traits: Traits = ON_DISK


def save_options(
    target: str,
    *,
    is_step: bool,
    chunks_for: Iterable[Any],
    compression: str,
    chunk_bytes: int | str | None,
    max_memory: int | str | None,
    workers: int | None,
    ocdbt: bool,
    style: Style,
    overwrite: bool,
    timeout: float,
) -> SaveOptions:
    """The options from the arguments of ``save``; PlanError or LayoutError for values that make no sense."""
    import jax

    traits = locate(target).traits
    limits, largest = limits_of(max_memory, workers, target), bytes_of("chunk_bytes", chunk_bytes)
    if largest is None:
        in_place = traits.in_place
        largest = SPLIT_ABOVE_BYTES if in_place else object_chunk_bytes(limits.max_memory)
    encoding = _encoding(compression)
    check_positive("chunk_bytes", largest, "bytes, such as 256MiB")
    check_choice("style", style, ("v0", "v1"))
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise PlanError(f"timeout is {timeout!r}; expected seconds, such as 1800")
    if ocdbt and jax.process_count() > 1:
        raise PlanError(
            "ocdbt=True: one database cannot be written by several processes; leave it out"
        )
    refuse_database(OrbaxForm(ocdbt), traits)
    return SaveOptions(
        limits.max_memory,
        limits.workers,
        encoding,
        largest,
        timeout,
        reader_layouts(chunks_for),
        style,
        ocdbt,
        overwrite,
        STEP_ITEM if is_step and style == "v0" else "",
        traits,
    )


def _encoding(compression: str) -> Encoding:
    found = parse_compression(compression)
    if found is None:
        raise PlanError(
            "compression 'keep' is for converting; live arrays have none: choose none, zstd, gzip or blosc"
        )
    return found
