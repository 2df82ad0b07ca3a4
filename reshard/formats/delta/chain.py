"""chain_reader: a full version with deltas over it, as one open checkpoint.

Its tensors are those of the base, their bytes those of the last version. Each chunk is computed by ``changes.py`` from the bytes of the base
and the payloads over them, and every checksum that a delta records is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, PlanError, VerificationError
from reshard.formats.base import Reader, WeightsVersion
from reshard.formats.computed.tensors import (
    ComputedTensor,
    Operand,
    computed_reader,
    computed_tensor,
)
from reshard.formats.contents import StoredTensor
from reshard.formats.delta.changes import DeltaFormula, Layer
from reshard.formats.delta.index import DeltaIndex, ListedTensor
from reshard.formats.delta.index_values import (
    folder_of,
    is_number,
    version_order,
    version_text,
)
from reshard.formats.delta.read_delta import Delta, Payload, anchor_version, open_delta
from reshard.formats.safetensors.header import header_shape, safetensors_name
from reshard.storage.location import Location, real_text

LAYER_BYTES = 500
"""Memory of a layer, an overestimate."""

_FULL_VERSION = "publish a full version, and start from that"


class Deltas(Struct, frozen=True):
    """The deltas over a checkpoint, as a Computation.

    Attributes:
        folders: in any order.
    """

    folders: tuple[Location, ...]

    @property
    def option(self) -> tuple[str, list[str]]:
        return "deltas", list(map(str, self.folders))

    @property
    def text(self) -> str:
        return ", ".join(map(real_text, self.folders))

    @property
    def tensor_bytes(self) -> int:
        """Each has an entry in an index, one in a header, and a layer."""
        return 2500 * len(self.folders)

    def applied(self, base: Reader, root: Location) -> Reader:
        """The version that they make; raises as ``chain_reader``."""
        deltas = list(map(open_delta, self.folders))
        known = {one for delta in deltas for one in (delta.base_version, delta.version)}
        return chain_reader(base, deltas, anchor_version(root, known))

    def places(self) -> Iterator[Location]:
        return iter(self.folders)

    def state(self) -> Iterator[str]:
        """The state of their files."""
        return (line for each in self.folders for line in each.state())


def chained(deltas: Sequence[Delta], anchor: str | None = None) -> tuple[Delta, ...]:
    """The deltas in order: each changes the version that the one before it makes; none may be missing.

    ``anchor``: the version of the base, where it is known. Raises PlanError for a version that is missing or there twice, for two deltas on
    one version and for a circle, VerificationError where a delta was made of another version than the one before it.
    """
    waiting = _by_base(deltas)
    before = start = _start(waiting) if anchor is None else anchor
    chain: list[Delta] = []
    while before in waiting:
        chain.append(waiting.pop(before))
        before = chain[-1].version
    again = next((delta for delta in deltas if delta.version == start), None)
    if again is not None:
        raise _given_twice(again)
    if waiting:
        left = min(waiting.values(), key=_order)
        raise PlanError(
            f"{left.place} changes the version {left.base_version}, but the version before it here is {before}; give every delta from the base to "
            "the last, each once"
        )
    for first, second in pairwise(chain):
        _check_link(first, second)
    return tuple(chain)


def _order(delta: Delta) -> tuple[str, int]:
    return version_order(delta.version)


def _by_base(deltas: Sequence[Delta]) -> dict[str, Delta]:
    """The deltas by the version that each changes."""
    found: dict[str, Delta] = {}
    made: set[str] = set()
    for delta in sorted(deltas, key=_order):
        if delta.version in made:
            raise _given_twice(delta)
        made.add(delta.version)
        other = found.setdefault(delta.base_version, delta)
        if other is not delta:
            raise PlanError(
                f"{other.place} and {delta.place} both change the version {delta.base_version}; give the one that leads to the version that is "
                "wanted, and what stands on it"
            )
    return found


def _start(by_base: Mapping[str, Delta]) -> str:
    """The version that the first delta changes, which no other makes."""
    made = {delta.version for delta in by_base.values()}
    first = min(
        (d for d in by_base.values() if d.base_version not in made), key=_order, default=None
    )
    if first is None:
        one = min(by_base.values(), key=_order)
        raise PlanError(
            f"{one.place} makes the version {one.version} of {one.base_version}, and the other deltas make that of it again: the chain is a "
            "circle; give the base the name of its version, and leave out the delta that makes it"
        )
    return first.base_version


def _given_twice(delta: Delta) -> PlanError:
    return PlanError(
        f"{delta.place}: the version {delta.version} is given twice; give each version once, and none that the base has already"
    )


def _check_link(first: Delta, second: Delta) -> None:
    """Raises VerificationError unless the base that a delta records is the result of the delta before it."""
    if unlike := unlike_base(first.index, second.index):
        raise VerificationError(
            f"{second.place} was made of other weights than {first.place} makes: {unlike}; the versions are of two runs: {_FULL_VERSION}"
        )


def unlike_base(first: DeltaIndex, second: DeltaIndex) -> str:
    """The digest in which the base of the second of two deltas differs from the result of the first; "" for none that both record."""
    pairs = [("identity", first.target_identity, second.base_identity)]
    if first.checksum == second.checksum:
        pairs.insert(0, ("digest", first.target_digest, second.base_digest))
    for what, made, base in pairs:
        if None not in (made, base) and made != base:
            return f"its base_{what} is {base}, but the target_{what} of the version {first.version} is {made}"
    return ""


def _refuse_unknown_base(base: Reader, first: Delta) -> None:
    """Raises PlanError where a first delta may be left out: a delta of another program names only tensors that it changes, and fits any version.

    A checkpoint without a recorded version is the one with which serving began; programs that count versions count it as 0.
    """
    index, started = first.index, version_text(0)
    if index.tensors is None and index.base_version != started:
        counts = is_number(index.base_version)
        counted = f", so that it counts as {started}" if counts else ""
        first_due = f"the version {version_text(1)}" if counts else "the version that it is"
        raise PlanError(
            f"{first.place} changes the version {first.base_version} and lists no checksums of the tensors that it does not change, and {base.uri} "
            f"records no version{counted}; give every delta from {first_due} on; or, if it is the "
            f"version {first.base_version}, give its folder that name ({folder_of(first.base_version)})"
        )


def chain_reader(base: Reader, deltas: Sequence[Delta], anchor: str | None = None) -> Reader:
    """The base as the last of its deltas leaves it; arguments as for ``chained``.

    Raises the errors of ``chained``; PlanError for deltas of another program over a base that nothing shows to be theirs; FormatError
    for a base that does not hold whole tensors in safetensors files; VerificationError for one without the tensors that the deltas record.
    """
    chain = chained(deltas, anchor)
    if anchor is None:
        _refuse_unknown_base(base, chain[0])
    if base.format != "safetensors":
        raise FormatError(
            f"{base.uri} is a checkpoint of the format {base.format}, but deltas change the bytes of safetensors files; convert it (to), and give "
            "the result as the base"
        )
    for delta in chain:
        _check_names(base, delta)
    listing = next((delta for delta in reversed(chain) if delta.index.tensors is not None), None)
    if listing is not None:
        _check_tensors(base, listing)
    layers = {name: _layers(tensor, chain, listing) for name, tensor in base.tensors.items()}
    computed = {name: _layered(base, name, found) for name, found in layers.items() if found}
    reader = computed_reader(base, computed)
    # Files and names are those of the base; so is what it records of a tensor that no delta changes.
    tensors = {
        name: replace(tensor, digest=base.tensors[name].digest)
        if _is_kept(layers[name])
        else tensor
        for name, tensor in reader.tensors.items()
    }
    kept = sum(delta.metadata_bytes for delta in chain)
    kept += LAYER_BYTES * sum(map(len, layers.values()))
    return replace(
        reader,
        tensors=MappingProxyType(tensors),
        leaves=base.leaves,
        metadata_bytes=reader.metadata_bytes + kept,
        warnings=(*base.warnings, *_warnings(chain, listing)),
        version=WeightsVersion(chain[-1].version, chain[-1].index.target_identity),
    )


def _is_kept(layers: Sequence[Layer]) -> bool:
    return all(layer.kind == "same" for layer in layers)


def _layers(
    tensor: StoredTensor, chain: Sequence[Delta], listing: Delta | None
) -> tuple[Layer, ...]:
    """The changes to a tensor; an unchanged tensor is compared with the record of the last delta."""
    name = tensor.spec.name
    found = tuple(_layer(d, d.payloads[name]) for d in chain if name in d.payloads)
    if found or listing is None or listing.index.tensors is None:
        return found
    digest = listing.index.tensors[name].digest
    return (Layer("same", listing.version, listing.index.checksum, digest),)


def _layer(delta: Delta, payload: Payload) -> Layer:
    piece, index = payload.piece, delta.index
    return Layer(
        index.encoding,
        delta.version,
        index.checksum,
        payload.digest,
        piece.path,
        piece.offset,
        piece.nbytes,
        piece.version,
    )


def _layered(base: Reader, name: str, layers: tuple[Layer, ...]) -> ComputedTensor:
    tensor = base.tensors[name]
    encoding, spec = tensor.encoding, tensor.spec
    is_whole = spec.storage.count <= 1 and not base.copies(name)
    if not is_whole or encoding.compressor != "none" or encoding.gathered != "no":
        raise FormatError(
            f"{base.uri} holds slices of {name!r} in several places, but deltas change whole tensors; convert it to safetensors with whole "
            "tensors, and give the result as the base"
        )
    formula = DeltaFormula(layers, encoding.read_ahead_bytes)
    return computed_tensor(spec, formula, [Operand.of(base, name)])


def _check_names(base: Reader, delta: Delta) -> None:
    for name, payload in delta.payloads.items():
        if name not in base.tensors:
            raise VerificationError(
                f"{delta.place} changes {name[:200]!r}, which {base.uri} does not have: it is not the base of this delta; give the version "
                f"{delta.base_version}, or {_FULL_VERSION}"
            )
        listed = payload.listed
        if listed is not None and (what := _unlike(base.tensors[name], listed)):
            raise _other_base(base, delta, what)


def _check_tensors(base: Reader, delta: Delta) -> None:
    """The base must have the tensors that a delta lists: names, dtypes and shapes."""
    listed: Mapping[str, ListedTensor] = delta.index.tensors or {}
    what = _first_difference(base, listed)
    if what:
        raise _other_base(base, delta, what)


def _other_base(base: Reader, delta: Delta, what: str) -> VerificationError:
    return VerificationError(
        f"{base.uri} is not the base of {delta.place}: {what}; give the version {delta.base_version}, or {_FULL_VERSION}"
    )


def _first_difference(base: Reader, listed: Mapping[str, ListedTensor]) -> str:
    for name, one in listed.items():
        tensor = base.tensors.get(name)
        if tensor is None:
            return f"the delta records {name[:200]!r}, which it does not have"
        if what := _unlike(tensor, one):
            return what
    more = next((name for name in base.tensors if name not in listed), None)
    return "" if more is None else f"it has {more[:200]!r}, which the delta does not record"


def _unlike(tensor: StoredTensor, listed: ListedTensor) -> str:
    """The difference between a tensor and a delta's record of it, in words; "" for none."""
    found = described(tensor)
    if (found.dtype, found.shape) == (listed.dtype, listed.shape):
        return ""
    return (
        f"{tensor.spec.name[:200]!r} is {found.dtype} of shape {list(found.shape)}, but the delta records {listed.dtype[:20]} of shape "
        f"{list(listed.shape)[:32]}"
    )


def described(tensor: StoredTensor) -> ListedTensor:
    """Dtype and shape of a tensor as a delta lists them, without its checksum."""
    spec = tensor.spec
    return ListedTensor(
        safetensors_name(spec.dtype, spec.name), header_shape(spec.dtype, spec.shape), ""
    )


def _warnings(chain: Sequence[Delta], listing: Delta | None) -> tuple[str, ...]:
    if listing is not None:
        return ()
    return (
        f"{chain[-1].place} records no checksums of the tensors that it does not change: those that no delta changes are taken from the base "
        "as they are",
    )
