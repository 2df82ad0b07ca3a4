"""What to say of a checkpoint whose stored bytes nothing vouches for."""

from __future__ import annotations

from reshard.formats.base import Reader


def record_warnings(reader: Reader) -> tuple[str, ...]:
    """One sentence where tensors have neither a recorded digest nor checksums in their chunks."""
    bare = [
        name
        for name, tensor in reader.tensors.items()
        if tensor.digest is None and not tensor.encoding.checksum
    ]
    if not bare:
        return ()
    some = "its data" if len(bare) == len(reader.tensors) else f"{bare[0]!r}"
    more = f" and {len(bare) - 1:,} more tensors" if len(bare) < len(reader.tensors) > 1 else ""
    more = more if len(bare) > 1 else ""
    return (
        f"{reader.uri!r} carries no checksum of {some}{more}, so damage from before now cannot be seen; "
        f"reshard fingerprint {reader.uri} records digests, by which later damage is found",
    )
