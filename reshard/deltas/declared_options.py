"""The options for the payloads of a delta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from reshard.arguments import DeltaChecksum, DeltaEncoding, DeltaReceiver
from reshard.options import OUTPUT, Option

OPTIONS: Mapping[str, Option] = {
    "receiver": Option(
        kind="choice",
        group=OUTPUT,
        choices=get_args(DeltaReceiver),
        metavar="|".join(get_args(DeltaReceiver)),
        help=(
            "The program that reads it. modelexpress takes the name of DST for the id of the version, has xor and adler32 only, and no list of the "
            "tensors that did not change."
        ),
        description="The program that reads it. modelexpress takes the name of the target's folder for the id of the version, has xor and adler32 "
        "only, and no list of the tensors that did not change.",
    ),
    "encoding": Option(
        kind="choice",
        group=OUTPUT,
        choices=get_args(DeltaEncoding),
        metavar="|".join(get_args(DeltaEncoding)),
        help="What a payload holds: the XOR of old and new bytes, which is smaller, or the positions of the bytes that differ and the new bytes.",
        description="The XOR of old and new bytes, which is smaller, or the positions of the bytes that differ and the new bytes.",
    ),
    "checksum": Option(
        kind="choice",
        group=OUTPUT,
        choices=get_args(DeltaChecksum),
        metavar="|".join(get_args(DeltaChecksum)),
        help="The checksum of each tensor. Only blake3 finds what somebody changed on purpose. Default: xxh3-128, for modelexpress adler32.",
        description="Of each tensor. Only blake3 finds what somebody changed on purpose. By default xxh3-128, for modelexpress adler32.",
    ),
    "file_bytes": Option(
        kind="size",
        group=OUTPUT,
        example="1GiB",
        default_bytes=1_000_000_000,  # receivers read each file whole into memory
        metavar="SIZE",
        help="Most bytes of payloads in one file; receivers read each file whole. Default: 1GB.",
        description="Most bytes of payloads in one file; 1 GB by default.",
    ),
}


def default_checksum(receiver: DeltaReceiver) -> DeltaChecksum:
    """The checksum of a delta for which none was chosen; ModelExpress reads one only."""
    return "adler32" if receiver == "modelexpress" else "xxh3-128"
