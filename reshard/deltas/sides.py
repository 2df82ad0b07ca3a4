"""The two checkpoints of a delta as tensors of one list: NEW as a conversion would make it, and OLD as it is or made alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError, ReshardError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.contents import Leaf
from reshard.formats.delta.index import ListedTensor
from reshard.formats.delta.read_delta import anchor_version
from reshard.formats.format import refuse_others
from reshard.formats.leaf_paths import renamed_leaves
from reshard.formats.quantized import find_pairs
from reshard.formats.safetensors.format import SAFETENSORS, SafetensorsForm
from reshard.formats.safetensors.header import header_shape, safetensors_name
from reshard.geometry.grid import Grid
from reshard.layout.changes import Changes
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import mapped_tensors
from reshard.planning.keep_pairs import refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites
from reshard.storage.location import Location

_FULL_VERSION = "a delta changes bytes and nothing else: publish a full version (reshard convert)"


class DeltaSide(Struct, frozen=True):
    """A checkpoint, and the tensors that are made of it.

    Attributes:
        mapping: its tensors, and those of the source that must be equal.
        is_as_it_is: true if neither a map nor rules made its tensors.
    """

    reader: Reader
    mapping: Mapped
    is_as_it_is: bool = False

    @property
    def tensors(self) -> Mapping[str, MappedTensor]:
        """Its tensors by name."""
        return {made.spec.name: made for made in self.mapping.tensors}


def delta_sides(
    old: Reader, new: Reader, given: GivenMap | None, changes: Changes, old_root: Location
) -> tuple[DeltaSide, DeltaSide]:
    """Both sides, with the same tensors in the same order.

    OLD is taken as it is where it was converted already, else the same rules are applied to it.

    Raises PlanError where the rules do not fit NEW, where the tensors differ in name, dtype or shape, and where OLD may be either; FormatError
    for content that safetensors files cannot hold.
    """
    made = _made(new, given, changes)
    if not made.is_as_it_is:
        specs = {name: tensor.spec for name, tensor in new.tensors.items()}
        refuse_parted(find_pairs(specs), specs, [each.pieces for each in made.mapping.tensors])
    _refuse_unknown(made)
    kept = _made(old, None, Changes(), only_tensors=True)
    difference = _difference(kept, made)
    again = _made_alike(old, given, changes, made, old_root)
    if again is not None and (difference or _is_step(old, new, made)):
        kept, difference = again, ""
    if difference:
        raise PlanError(f"{difference}; {_FULL_VERSION}")
    olds = kept.tensors
    ordered = tuple(olds[made.spec.name] for made in made.mapping.tensors)
    return replace(kept, mapping=replace(kept.mapping, tensors=ordered)), made


def left_out_warnings(old: DeltaSide) -> tuple[str, ...]:
    """A warning where the rules leave out tensors of an OLD that serving might read as it is, such as the scales of quantised weights."""
    count = len(old.reader.tensors) - len(old.tensors)
    if old.is_as_it_is or old.reader.format != SafetensorsForm.format or count <= 0:
        return ()
    return (
        f"the rules leave out {count:,} of the {len(old.reader.tensors):,} tensors of {old.reader.uri} too, and the delta is of the others alone: it "
        "does not fit that folder as it is, only what a conversion by the same rules makes of it",
    )


def _made_alike(
    old: Reader, given: GivenMap | None, changes: Changes, made: DeltaSide, old_root: Location
) -> DeltaSide | None:
    """OLD as the rules make it; None without rules, where they give other tensors than of NEW, and for a version, which receivers have
    as it is."""
    if (given is None and not changes) or anchor_version(old_root) is not None:
        return None
    try:
        again = _made(old, given, changes)
    except ReshardError:
        return None
    return None if _difference(again, made) else again


def _is_step(old: Reader, new: Reader, made: DeltaSide) -> bool:
    """True if OLD is a step of the run though its tensors, as they are, also fit those made of NEW, as where a map turns a square matrix.

    If one were taken for the other, each byte would be compared with one of another place.
    """
    plain = _made(new, None, Changes(), only_tensors=True)
    if _difference(plain, made) or _pieces(plain) == _pieces(made):
        return False
    if old.format != SafetensorsForm.format:
        return True
    if new.format != SafetensorsForm.format:
        return False
    raise PlanError(
        f"{old.uri} may be a step, or what the map and rules made of one: its names, dtypes and shapes fit both; convert the step to a folder with "
        "the name of its version, such as weight_v000006, and give that"
    )


def _pieces(side: DeltaSide) -> Mapping[str, tuple[Piece, ...]]:
    return {name: made.pieces for name, made in side.tensors.items()}


def listed_tensor(spec: TensorSpec, digest: str) -> ListedTensor:
    """A tensor as the index of a delta lists it."""
    dtype = safetensors_name(spec.dtype, spec.name)
    return ListedTensor(dtype, header_shape(spec.dtype, spec.shape), digest)


def _made(
    reader: Reader, given: GivenMap | None, changes: Changes, *, only_tensors: bool = False
) -> DeltaSide:
    if given is not None:
        return DeltaSide(reader, mapped_tensors(reader, given, changes)[0])
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    keys = {name for name, tensor in reader.tensors.items() if tensor.is_key}
    found = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    names = {rewrite.source: rewrite.target for rewrite in found}
    leaves = renamed_leaves(reader.leaves, names, reader.container.naming_items).leaves
    if not only_tensors:
        _refuse_leaves(reader, leaves)
    tensors = tuple(
        _whole(specs[rewrite.source], leaf.name, rewrite.dtype, rewrite.saturate)
        for rewrite, leaf in zip(found, leaves, strict=True)
        if rewrite.source in specs
    )
    return DeltaSide(reader, Mapped(tensors), is_as_it_is=not changes)


def _whole(source: TensorSpec, name: str, dtype: str | None, saturate: bool) -> MappedTensor:
    spec = TensorSpec(name, source.shape, dtype or source.dtype, Grid.whole(source.shape))
    return MappedTensor(spec, (Piece.whole(source, spec, saturate=saturate),), "")


def _refuse_leaves(reader: Reader, leaves: Sequence[Leaf]) -> None:
    """Refuses the leaves that a conversion to safetensors refuses: strings, None, empty containers and PRNG keys."""
    target = TargetCheckpoint(reader.container, {}, leaves, {}, SafetensorsForm())
    refuse_others(SAFETENSORS, target, reader)


def _refuse_unknown(side: DeltaSide) -> None:
    for name, made in side.tensors.items():
        safetensors_name(made.spec.dtype, name)


def _difference(old: DeltaSide, new: DeltaSide) -> str:
    """The first difference between the tensors of both, as a clause; "" for none."""
    olds, news = old.tensors, new.tensors
    for name, made in news.items():
        if name not in olds:
            return f"{old.reader.uri} has no {name[:200]!r}, which {new.reader.uri} gives"
        a, b = olds[name].spec, made.spec
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return (
                f"{name[:200]!r} is {a.dtype} of shape {list(a.shape)} in {old.reader.uri}, but {new.reader.uri} gives {b.dtype} of shape "
                f"{list(b.shape)}"
            )
    more = next((name for name in olds if name not in news), None)
    return "" if more is None else f"{old.reader.uri} has {more[:200]!r}, which {new.reader.uri} does not give"  # fmt: skip
