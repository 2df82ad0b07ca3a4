"""KnownIdentity: the plan for the identity of a target's weights, made before anything is written.

The version of a target's weights: as its name says, or as the deltas over its source make it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.conversion.options import IdentityMode
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader, TargetCheckpoint, WeightsVersion
from reshard.formats.delta.index_values import folder_of
from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.names import SIGNATURE_NAME
from reshard.identity.envelope import RecordedSignature, recorded_signature
from reshard.identity.identity_file import how_to_record, read_identity, with_nodes
from reshard.identity.leaf_tree import check_installed, is_installed
from reshard.identity.weights_identity import WeightsIdentity, check_identity_of
from reshard.planning.plans import Plan, TensorPlan
from reshard.storage.location import Location, locate


def with_version(
    target: TargetCheckpoint, place: Location, reader: Reader, options: CheckedOptions
) -> TargetCheckpoint:
    """The target with the version that its index records.

    Raises PlanError where the name says another version than the deltas make. A map or rules make another version, which only a name
    can number.
    """
    named = version_of_name(place.name)
    is_as_made = options.given_map is None and not options.changes
    made = reader.version.id if reader.version is not None and is_as_made else None
    if made is not None and named not in (None, made):
        raise PlanError(
            f"the target {str(place)!r} has the name of the version {named}, but the deltas make the version {made}, on "
            f"which receivers would put the wrong deltas; name it {folder_of(made)}, or by no version"
        )
    return replace(target, version=made if named is None else named)


class KnownIdentity(Struct, frozen=True):
    """The plan for the identity of a target.

    Attributes:
        mode: as asked, or the default.
        of_source: the identity that the source records, if it is needed; None for a base with deltas, whose files are of the base.
        root: the root that the last of the deltas records for the target's tensors; None without one.
        signature: of the source's root, where the target's is the same.
        warnings: a sentence each.
    """

    mode: IdentityMode = "none"
    of_source: WeightsIdentity | None = None
    root: str | None = None
    signature: RecordedSignature | None = None
    warnings: tuple[str, ...] = ()


def known_identity(
    asked: IdentityMode | None, plan: Plan, reader: Reader, source: Location
) -> KnownIdentity:
    """The plan for the identity of a target, made before anything is written; ``source`` answers from the listing of the call.

    Raises PlanError where an identity must be carried or checked and the source has none, or tensors get other bits; CorruptError
    where the source's does not fit its tensors.
    """
    if asked == "none" or (asked is None and not is_installed()):
        return KnownIdentity("none")
    if reader.version is not None:
        return _with_deltas(asked, plan, reader, reader.version)
    if asked == "compute":
        check_installed()
        return KnownIdentity("compute", identity_of_source(reader, source))
    other = next((tensor.name for tensor in plan.unlike if not keeps_bits(tensor)), None)
    if asked is None:
        # Bits first: the source's identity would be read for nothing.
        of_source = None if other is not None else _unasked(reader, source)
        return (
            KnownIdentity()
            if of_source is None
            else _with_signature("carry", plan, of_source, source.view())
        )
    of_source = identity_of_source(reader, source, with_tree=True)
    if of_source is None:
        raise nothing_to(asked, reader)
    if other is not None:
        raise PlanError(
            f"{other!r} gets other bits than its source, so that no identity can be {_DONE[asked]}; compute the target's (identity)"
        )
    return _with_signature(asked, plan, of_source, source.view())


def _unasked(reader: Reader, source: Location) -> WeightsIdentity | None:
    """The identity of a source, read unasked, so that an error says how to do without it."""
    try:
        return identity_of_source(reader, source, with_tree=True)
    except FormatError as error:
        said = f'{error}, or convert without it (identity="none")'
        error.args = (said, *error.args[1:])
        raise


def _with_signature(
    mode: IdentityMode, plan: Plan, of_source: WeightsIdentity, folder: Location
) -> KnownIdentity:
    """The source's signature is the target's too, where all tensors keep their names; it is copied, and not verified."""
    names = {tensor.name: tensor.piece.source for tensor in plan.tensors}
    if names != {name: name for name in of_source.tensors}:
        return KnownIdentity(mode, of_source)
    try:
        found = recorded_signature(folder)
    except FormatError as error:
        return KnownIdentity(mode, of_source, warnings=(f"no signature is carried: {error}",))
    if found is None or found.root == of_source.root:
        return KnownIdentity(mode, of_source, signature=found)
    other = (
        f"no signature is carried: {folder / SIGNATURE_NAME} is of the root {found.root}, and the source's is {of_source.root}; sign the "
        "source anew (reshard sign), or remove that file"
    )
    return KnownIdentity(mode, of_source, warnings=(other,))


def _with_deltas(
    asked: IdentityMode | None, plan: Plan, reader: Reader, version: WeightsVersion
) -> KnownIdentity:
    """The plan for a base with deltas: no tensor's hash is recorded, so that nothing can be carried."""
    if asked is None:
        return KnownIdentity("none")
    check_installed()
    is_as_made = len(plan.tensors) == len(reader.tensors) and all(
        keeps_bits(tensor) and tensor.name == tensor.piece.source for tensor in plan.tensors
    )
    root = version.root if is_as_made else None
    if asked == "compute" or (asked == "check" and root is not None):
        return KnownIdentity(asked, root=root)
    raise no_deltas_to(asked, reader)


def identity_of_source(
    reader: Reader, source: Location, *, with_tree: bool = False
) -> WeightsIdentity | None:
    """The identity that a source records; None where it records none, CorruptError where it does not fit the tensors."""
    folder = source.view()
    found = read_identity(folder)
    if found is None:
        return None
    check_identity_of(reader, found)  # first: the tree is as large as identity.json says
    return with_nodes(folder, found) if with_tree else found


def identity_warnings(
    known: KnownIdentity, source: Reader, target: TargetCheckpoint
) -> tuple[str, ...]:
    """Reasons why a folder gets no signature of its source, or no receipt though rules give it another root."""
    if target.form.file:
        return ()
    return *known.warnings, *_receipt_warnings(known, source, target)


def _receipt_warnings(
    known: KnownIdentity, source: Reader, target: TargetCheckpoint
) -> tuple[str, ...]:
    made = target.made
    if known.mode != "compute" or known.of_source is not None or made is None:
        return ()
    if not made.changes and made.by is None:
        return ()
    return (
        f"no receipt is written, since the source records no identity; {how_to_record(source.uri)}, and convert again from there, if "
        "somebody must be able to redo the conversion",
    )


_DONE = {"carry": "carried", "check": "checked"}


def nothing_to(mode: IdentityMode, source: Reader) -> PlanError:
    """The error where an identity must be carried or checked, and the source records none."""
    instead = (
        f"; {how_to_record(source.uri)}, or compute"
        if locate(source.uri).is_folder()
        else ": only a folder has a place for one; compute"
    )
    return PlanError(
        f"{source.uri} records no identity that could be {_DONE[mode]}{instead} the target's (identity)"
    )


def no_deltas_to(mode: IdentityMode, source: Reader) -> PlanError:
    """The error where an identity must be carried or checked, and deltas over the source do not record enough for it."""
    return PlanError(
        f"an identity of {source.uri} with deltas over it cannot be {_DONE[mode]}: deltas record at most the root of what they make, which "
        "holds for all of its tensors under their names; compute the target's (identity)"
    )


def keeps_bits(tensor: TensorPlan) -> bool:
    """True if a target tensor is a whole source tensor, bit for bit."""
    if len(tensor.pieces) != 1:
        return False
    piece, spec = tensor.piece, tensor.target.spec
    return (
        piece.fill is None
        and not piece.is_computed
        and piece.source_view is None
        and piece.target_view is None
        and piece.axis_order == tuple(range(len(spec.shape)))
        and piece.source_box.shape == tensor.source.spec.shape == spec.shape
    )
