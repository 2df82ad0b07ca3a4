"""The version beside a target on which its delta will stand: OLD must give what that version holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.deltas.payloads import TensorPayload
from reshard.engine.metadata_budget import check_leaves_to_read
from reshard.errors import VerificationError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.index import DeltaIndex, is_delta, parse_index, version_text
from reshard.formats.delta.read_delta import holds_delta
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.registry import open_reader
from reshard.formats.safetensors.model_name import INDEX_NAME
from reshard.storage.location import Location

_REMEDY = "give that version itself, or the step that it was made of with the same rules, or publish a full version"


class FullBefore(Struct, frozen=True):
    """A full version beside the target, which OLD is not itself.

    Attributes:
        digests: of its tensors, as ``fingerprint`` records them; None for one without.
    """

    place: Location
    digests: Mapping[str, str | None]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not compared."""
        count = sum(digest is None for digest in self.digests.values())
        if not count:
            return ()
        return (
            f"{self.place} records no digests of {count:,} of its {len(self.digests):,} tensors, so that they were not compared with the old "
            "checkpoint; give that folder as the old one, or record digests (reshard fingerprint)",
        )


def full_before(
    place: Location, base_version: int, old: CheckpointPath, max_memory: int
) -> FullBefore | None:
    """The full version on which a delta to ``place`` will stand; None where there is none, or where it is OLD itself.

    Raises the errors of ``open_reader`` for one that cannot be read.
    """
    beside = _beside(place, base_version)
    if not beside.exists() or str(beside) == str(old.root) or holds_delta(beside.view()):
        return None
    chosen = CheckpointPath.at(str(beside))
    check_leaves_to_read(max_memory, chosen)
    tensors = open_reader(chosen).tensors
    return FullBefore(beside, {name: stored.digest for name, stored in tensors.items()})


def refuse_other_full(
    before: FullBefore | None, old: str, payloads: Sequence[TensorPayload]
) -> None:
    """Refuses an OLD whose tensors have other digests than the full version beside the target."""
    if before is None:
        return
    found = {payload.spec.name: payload.crcs[0] for payload in payloads}
    for name in [*found, *before.digests]:
        there = before.digests.get(name, "nothing")
        given = found.get(name, "nothing")
        if there not in (None, given):
            raise VerificationError(
                f"of {name[:200]!r} the old checkpoint {old!r} gives {given}, but {before.place}, on which the delta would stand, has {there} "
                f"(digests as reshard fingerprint records them): it is not that version; {_REMEDY}"
            )


def refuse_other_base(index: DeltaIndex, place: Location) -> None:
    """Refuses an OLD that is not the base version beside the target, where that is a delta which says what it gives."""
    file = _beside(place, index.base_version).view() / INDEX_NAME
    if not file.is_file():
        return
    data = read_bytes(file, what="the index of the base version")
    if not is_delta(json_value(data, str(file))):
        return
    base = parse_index(data, str(file))
    if base.checksum == index.checksum and base.target_digest not in (None, index.base_digest):
        raise VerificationError(
            f"the old checkpoint gives the digest {index.base_digest}, but {file} records {base.target_digest} for the version "
            f"{version_text(index.base_version)}: it is not what that version was made of, or other rules were applied; {_REMEDY}"
        )


def _beside(place: Location, base_version: int) -> Location:
    return place.parent / f"weight_v{version_text(base_version)}"
