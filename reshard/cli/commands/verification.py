"""``reshard verify``, ``diff`` and ``fingerprint``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import most_rows
from reshard.cli.failures import DIFFERENT, FAILED, refused
from reshard.cli.groups import (
    ByServer,
    Computed,
    Output,
    Requantized,
    Resources,
    StepAndItem,
    refuse_here,
)
from reshard.cli.options import Misuse, Source, Texts, usage
from reshard.cli.remote import connected, identity_there, map_there
from reshard.cli.target_options import Changes, check_words, declared, is_delta


def verify(
    a: str,
    b: list[str] | None = None,
    *,
    chosen: Requantized,
    changes: Changes,
    missing_chunks: Annotated[reshard.MissingChunks | None, declared("missing_chunks")] = None,
    identity: str | None = None,
    key: str | None = None,
    name: str | None = None,
    min_version: str | None = None,
    receipt: str | None = None,
    delta: Texts = None,
    resources: Resources,
    by: ByServer,
    output: Output,
) -> None:
    """Compare two checkpoints bit by bit, or one with its own record.

    Reads every byte, and compares the digests (CRC-64/NVME) of the tensors, whatever mesh, chunks
    or compression they are stored in, and of every other file that was recorded. Strings, None and empty containers of A
    and B are compared too. All damage is listed, tensor by tensor and file by file.

    --step and --item choose a part of A; --unlisted is for both. If reshard made B of A with --select, --drop, --rename or --cast, B records
    the rules, and each tensor is compared with its source. A cast is done again, and every bit compared. Give the rules
    if B does not record them; they replace all recorded rules.

    With --map each tensor of B is compared with what the map makes of A; nothing is written. If reshard made B by a map, B records it.

    Exit code 3 if something differs, or if a checkpoint with a record of itself is too damaged to be read; 1 if there
    is no checkpoint, or if it has no record to compare with (reshard fingerprint makes one).

    With --identity or --key the root of A's weights is computed, and must be the one that is given or signed; what is recorded
    beside the weights proves nothing. Exit code 3 also if the key has signed something else. An older checkpoint keeps a right signature of its
    own: --name and --min-version refuse it, where reshard sign was given a name and a version.

    With --receipt the roots of A and B must be those that the receipt names, and B what its rules make of A.
    With --delta, once for each, the version that the deltas make of A is verified, and nothing is written: with B bit by bit, without it by
    the checksums that they record. The base may also stand behind --delta, before the deltas.

    With --server a server reads and compares its checkpoints, and this command waits for its answer. --identity is then a root, and the
    text of the public key of --key is sent.

    Options:
        A: The checkpoint to verify; with --step, the folder of a training run.
        [B]: The checkpoint to compare with, on any mesh and in any chunks. Without it, the data stored in A is compared with the digests
            that A recorded when it was written. With --delta more deltas may stand here, as a shell makes them of one pattern.
        --identity ROOT: The root that the weights of A must have (64 hex digits; reshard identify shows it), or a folder with an
            identity.json. The root is computed anew.
        --key PEM: The public key that signed the root of A (reshard sign). The signature is read from A, or from the folder of --identity;
            the root is computed anew.
        --name: With --key: the name of the model that must be signed.
        --min-version N: With --key and --name: the earliest version that may be signed. An older checkpoint is refused, whose own
            signature is right.
        --receipt FILE: The receipt of the conversion that made B of A: identity.receipt.json, or a folder that has it, such as B itself.
            Both roots are computed anew, and its rules are applied again.
        --delta DELTA: A delta over A; give every one from A to the version that is wanted. What they make of A is verified.

    Examples:
        $ reshard verify served
        $ reshard verify ckpt/1000 served
        $ reshard verify ckpt served --step 1000
        $ reshard verify ckpt/1000 others --select '^params/' --rename '^params/=model/'
        $ reshard verify ckpt/1000 hf --map to_hf.yaml
        $ reshard verify served --identity identities/served
        $ reshard verify served --key release.pub.pem
        $ reshard verify hf --delta published/weight_v00000[1-2]
        $ reshard verify data/run/1000 data/served --server http://checkpoints:8080
        $ reshard verify served && rsync -a served/ serving-host:/models/
    """
    asked = by.asked()
    a, delta = _base_of(a, delta or []) if asked is None else (a, delta or [])
    other, delta = _split(b or [], delta, is_there=asked is not None)
    rules = changes.parsed()
    given = {name: value for name, value in rules.items() if value}
    check_words(given, [], is_there=asked is not None)
    if asked is not None:
        refuse_here(
            asked,
            {
                "--missing-chunks": missing_chunks,
                "--workers": resources.workers,
                "--receipt": receipt,
                "--quantize-like": chosen.quantize_like,
            },
        )
        # A server of before maps and deltas does not know their options: they are sent only where they are given.
        newer = {
            "sizes": rules["sizes"] or None,
            "reverse": changes.reverse or None,
            "deltas": delta or None,
        }
        there = {**chosen.there(), **rules, **newer, "max_memory": resources.max_memory}
        with _other_signature(output.as_json):
            there |= identity_there(identity, key, name, min_version)
            there |= map_there(changes.map)
            with connected(asked) as client:
                found = client.checkpoints.verify(a, other, **there)
    else:
        a = chosen.of(a)
        here: dict[str, Any] = {
            "missing_chunks": missing_chunks,
            **chosen.option,
            "identity": identity,
            "key": key,
            "name": name,
            "min_version": min_version,
            "receipt": receipt,
            "deltas": delta or None,
            **rules,
            **asdict(resources),
        }
        with _other_signature(output.as_json), output.watching() as progress:
            found = reshard.verify(a, other, **here, progress=progress)
    view = "verification.verification_view"
    output.tell("verify", found, view, output.show_all, most_rows(), len(delta))
    if found.differences:
        raise typer.Exit(DIFFERENT)
    if not found.is_compared:
        raise typer.Exit(FAILED)


def _base_of(a: str, deltas: list[str]) -> tuple[str, list[str]]:
    """The base and the deltas, also of ``verify --delta BASE DELTA…``, where the option takes the base."""
    if deltas and is_delta(a) and not is_delta(deltas[0]):
        return deltas[0], [a, *deltas[1:]]
    return a, deltas


def _split(
    words: Sequence[str], deltas: Sequence[str], *, is_there: bool
) -> tuple[str | None, list[str]]:
    """B, and the deltas: those of the option, and of the words behind A, among which a shell puts the others of one pattern."""
    more = [word for word in words if deltas and not is_there and is_delta(word)]
    others = [word for word in words if word not in more]
    if len(others) > 1:
        said = (
            "give each delta by its own --delta" if is_there else "give one, and deltas by --delta"
        )
        raise Misuse(
            f"{' and '.join(others)} stand behind A, but A is compared with one checkpoint; {said}"
        )
    return (others[0] if others else None), [*deltas, *more]


@contextmanager
def _other_signature(as_json: bool) -> Iterator[None]:
    """A signature of the key for something else is a difference."""
    try:
        yield
    except reshard.VerificationError as error:
        refused(error, as_json)
        raise typer.Exit(DIFFERENT) from None


def diff(
    a: str,
    b: str,
    *,
    chosen: Computed,
    select: Texts = None,
    drop: Texts = None,
    resources: Resources,
    output: Output,
) -> None:
    """Show which tensors of two checkpoints differ, and by how much.

    Reads both once, element by element. For each tensor that differs: how many elements do, the
    largest difference |a - b|, and the relative norm ‖a - b‖ / ‖a‖. Tensors that one checkpoint lacks, differences of
    shape and dtype, and leaves that are not tensors are listed too. Tensors of different dtypes are compared by value,
    without loss. --step and --item choose a part of A;
    --unlisted is for both.

    Exit code 0 if everything is equal bit for bit, 3 if something differs.

    Options:
        A: The checkpoint to start from; with --step, the folder of a training run.
        B: The other checkpoint, on any mesh and in any chunks.
        --select RE: Compare only leaves whose name this regular expression finds; may be repeated. Default: all.
        --drop RE: Leave out leaves whose name this finds, after --select; may be repeated.

    Examples:
        $ reshard diff ckpt/1000 served
        $ reshard diff ckpt/1000 ckpt/2000 --select '^params/'
        $ reshard diff ckpt ckpt/2000 --step latest --drop '^opt_state/' --all
    """
    changes: dict[str, Any] = {"select": select or (), "drop": drop or ()}
    with usage():
        reshard.check_arguments(**changes)
    a = chosen.of(a)
    with output.watching() as progress:
        found = reshard.diff(
            a, b, **chosen.option, **changes, **asdict(resources), progress=progress
        )
    output.tell("diff", found, "diff.diff_view", output.show_all, most_rows())
    if found.differences:
        raise typer.Exit(DIFFERENT)


def fingerprint(
    src: Source,
    *,
    chosen: StepAndItem,
    overwrite: bool = False,
    resources: Resources,
    output: Output,
) -> None:
    """Record digests of a checkpoint in it, so that later damage is found.

    Stock Orbax stores no checksum of its data. This reads every byte once and adds a small file,
    slices.json, beside each _METADATA and at the top; nothing else is changed, and Orbax restores
    the checkpoint as before. From then on verify, convert and restore compare the bytes that they read with it. Earlier
    damage is not detected.

    These digests are fast and find accidents. Someone can change weights and keep them: against that, reshard identify and sign
    make hashes that cannot be kept.

    Options:
        --overwrite: Replace an existing record, after the checkpoint was changed on purpose.

    Examples:
        $ reshard fingerprint ckpt/1000
        $ reshard fingerprint ckpt/1000 && reshard verify ckpt/1000
        $ reshard fingerprint ckpt --step latest
        $ reshard fingerprint ckpt/1000 --overwrite
    """
    src = chosen.of(src)
    with output.watching() as progress:
        found = reshard.fingerprint(
            src, overwrite=overwrite, **asdict(resources), progress=progress
        )
    output.tell("fingerprint", found, "verification.fingerprint_view", output.show_all)
