"""The content of a target that a map makes: tensors of several pieces, under names of their own."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.conversion.growth import check_growth
from reshard.conversion.target_content import TargetContent
from reshard.conversion.target_tensors import request_of, target_tensor
from reshard.errors import PlanError
from reshard.formats.base import Form, Reader, TargetTensor
from reshard.formats.contents import Encoding, Leaf, StoredTensor
from reshard.formats.slices.origin import Made
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import leaf_of, mapped_tensors
from reshard.planning.pairing import tree_digest
from reshard.planning.planner import Request
from reshard.planning.target_layouts import look_up
from reshard.storage.base import Traits


def mapped_content(
    reader: Reader, options: CheckedOptions, form: Form, traits: Traits
) -> TargetContent:
    """What the map of the options makes of the checkpoint; PlanError for what it leaves open."""
    given = options.given_map
    if given is None:
        raise PlanError("no map is given")
    mapping, dropped = mapped_tensors(reader, given, options.changes)
    check_growth(reader, options, (made.spec for made in mapping.tensors))
    look_up(options.layout, [made.spec.name for made in mapping.tensors])
    making = _Making(reader, options, form, traits)
    for made in mapping.tensors:
        making.add(made)
    return TargetContent(
        making.tensors,
        making.leaves,
        tuple(making.requests),
        dropped,
        _warnings(mapping),
        Made(tree_digest(reader.tensors), len(making.tensors), options.changes, by=given.plain),
        mapping,
    )


def _warnings(mapping: Mapped) -> tuple[str, ...]:
    if not mapping.cropped:
        return ()
    some = ", ".join(map(repr, mapping.cropped[:3])) + (", …" if len(mapping.cropped) > 3 else "")
    return (f"the map takes only a part of {some} (crop)",)


class _Making(Struct):
    """The target in the making."""

    reader: Reader
    options: CheckedOptions
    form: Form
    traits: Traits
    tensors: dict[str, TargetTensor] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def add(self, made: MappedTensor) -> None:
        """A target tensor, with a request for each of its pieces."""
        first = next((p.source for p in made.pieces if p.fill is None), None)
        leaf = leaf_of(self.reader, made)
        like = self._like(made.spec, None if first is None else self.reader.tensors[first])
        tensor = target_tensor(like, leaf, made.spec.dtype, self.options.layout, self.form)
        self.tensors[leaf.name] = tensor
        self.leaves.append(leaf)
        sides: dict[str, Request] = {}
        for piece in made.pieces:
            stored = like if piece.fill is not None else self.reader.tensors[piece.source]
            known = sides.get(piece.source)
            if known is None:
                known = request_of(piece, stored, tensor, self.form, self.traits)
                sides[piece.source] = known
            self.requests.append(replace(known, piece=piece))

    def _like(self, spec: TensorSpec, source: StoredTensor | None) -> StoredTensor:
        """The target tensor as if it were stored whole, encoded as its source is."""
        whole = replace(spec, storage=Grid.whole(spec.shape))
        if source is None:
            return StoredTensor(whole, Encoding(), bytes(spec.itemsize), may_be_missing=False)
        return StoredTensor(
            whole, source.encoding, bytes(spec.itemsize), may_be_missing=False, is_key=source.is_key
        )
