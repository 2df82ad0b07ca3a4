"""The identities that the weights before and after a delta record, and their comparison with the bytes that were read."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from reshard.deltas.payloads import TensorPayload
from reshard.deltas.sides import DeltaSide
from reshard.identity.hashes import is_installed
from reshard.identity.identity_file import read_identity
from reshard.identity.weights_identity import (
    WeightsIdentity,
    changed_once_identified,
    check_identity_of,
)
from reshard.storage.location import Location


class RecordedRoots(Struct, frozen=True):
    """The identities of OLD and NEW; None where none is recorded, or where a map or rules make other tensors."""

    old: WeightsIdentity | None
    new: WeightsIdentity | None

    @property
    def are_there(self) -> tuple[bool, bool]:
        """True for each of both that is there."""
        return self.old is not None, self.new is not None


def recorded_roots(
    old: DeltaSide, new: DeltaSide, roots: tuple[Location, Location]
) -> RecordedRoots:
    """The identities in the ``identity.json`` of both folders; CorruptError where one does not fit the tensors there."""
    return RecordedRoots(_identity(old, roots[0]), _identity(new, roots[1]))


def _identity(side: DeltaSide, root: Location) -> WeightsIdentity | None:
    if not side.is_as_it_is or not is_installed():
        return None
    found = read_identity(root.view())
    if found is not None:
        check_identity_of(side.reader, found)
    return found


def check_identified_bytes(
    recorded: RecordedRoots, sides: tuple[DeltaSide, DeltaSide], payloads: Sequence[TensorPayload]
) -> None:
    """Raises CorruptError where the bytes that were read are not those of the identities."""
    for number, known in enumerate((recorded.old, recorded.new)):
        if known is None:
            continue
        for payload in payloads:
            name, crc = payload.spec.name, payload.crcs[number]
            then = known.tensors[name].crc64nvme
            if crc != then:
                raise changed_once_identified(sides[number].reader.uri, name, crc, then)
