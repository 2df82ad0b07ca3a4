"""The public functions of the identity of weights: identify, sign, prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reshard.arguments import path_of
from reshard.engine.limits import limits_of

if TYPE_CHECKING:
    from reshard.arguments import Path, Unlisted
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.identity.identification import Identification
    from reshard.saving.prove_arrays import ProofReport


def identify(
    path: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    write: bool = False,
    out: Path | None = None,
    sha256: bool = False,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Identification:
    """The identity of a checkpoint's weights: a root that is equal for every mesh, chunking, codec and format of them.

    Reads every byte once. The root covers names, dtypes, shapes and every bit; making other weights with the same root
    is infeasible (BLAKE3). ``docs/reference/identity.md`` defines it. Needs the extra ``identity``.

    Args:
        step, item, unlisted: as for ``inspect``.
        write: write ``identity.json`` and ``identity.tree`` into the checkpoint.
        out: a folder to write them into instead.
        sha256: write ``sha256.json`` beside them, the SHA-256 of each tensor's row-major bytes by name; each tensor is read a
            second time.
        max_memory, workers, progress: as for ``diff``.

    Raises CorruptError, naming the tensor, if stored bytes are wrong or not those that the checkpoint recorded; PlanError for
    ``write`` if the checkpoint is not a folder; FormatError if another program or a newer version wrote files of these names;
    MissingPackageError without the extra.

    >>> identify("ckpt/1000").root  # doctest: +SKIP
    'd0c8…'
    """
    from reshard.errors import PlanError
    from reshard.formats.choose import choose_checkpoint
    from reshard.identity.identification import identify_checkpoint, place_for, refuse_other_sha256

    limits = limits_of(max_memory, workers, path)
    chosen = choose_checkpoint(path, step, item, unlisted=unlisted)
    place = place_for(chosen.path, write=write, out=None if out is None else path_of("folder", out))
    if sha256 and place is None:
        raise PlanError(
            "sha256 is written beside the files of the identity; say where: into the checkpoint (write) or a folder (out)"
        )
    if sha256 and place is not None:
        refuse_other_sha256(place)
    found = identify_checkpoint(chosen, limits, place, None, progress)
    if sha256 and place is not None:
        from msgspec.structs import replace

        from reshard.streaming.tensor_stream import write_sha256

        written = write_sha256(chosen, place, limits)
        found = replace(found, written=(*found.written, str(written)))
    return found


def sign(
    path: Path,
    key: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    out: Path | None = None,
    name: str | None = None,
    version: int | str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Identification:
    """Signs the weights of a checkpoint: computes their root, and writes ``identity.dsse.json`` beside the identity's files.

    It signs the root that it computes now, never a recorded one. The signature is a DSSE envelope around an in-toto Statement.
    ``verify(key=)`` checks it, and computes the root anew.

    Args:
        key: a PEM file with a private key, not encrypted: Ed25519 or ECDSA on P-256.
        step, item, unlisted: as for ``inspect``.
        out: the folder to write into; None writes into the checkpoint.
        name, version: of the model, signed with the root and the time: then ``verify(name=, min_version=)`` refuses an older
            checkpoint, even with a valid signature of its own. Whole numbers have an order.
        max_memory, workers, progress: as for ``diff``.

    Raises PlanError for a version without a name; FormatError for a key of another kind or an encrypted one; other errors as ``identify``.

    >>> sign("ckpt/1000", "release.pem").signer  # doctest: +SKIP
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.identity.envelope import signing_now
    from reshard.identity.identification import identify_checkpoint, place_for
    from reshard.identity.keys import read_private_key
    from reshard.storage.location import locate

    limits = limits_of(max_memory, workers, path)
    said = signing_now(name, version)
    private = read_private_key(locate(path_of("key", key)))
    chosen = choose_checkpoint(path, step, item, unlisted=unlisted)
    folder = None if out is None else path_of("folder", out)
    place = place_for(chosen.path, write=out is None, out=folder)
    return identify_checkpoint(chosen, limits, place, private, progress, said)


def prove(arrays: Any, identity: Path | Identification, *, root: str | None = None) -> ProofReport:
    """Proves that live arrays are the weights of an identity: each process proves its own shards, without gathering the others.

    Each node of about 1 MiB of an array's tree is hashed, and compared with ``identity.tree``; it may come from several shards of
    this process. Replicas are hashed once. A node that this process has only in part is reported, not proved. No
    more than one node is copied from devices at a time. Needs the extra ``identity``.

    Args:
        arrays: a tree of jax and numpy arrays, named as ``save`` names them, or a mapping by name; a subset of the tensors is enough.
        identity: the folder of an ``identity.json`` and ``identity.tree``, or the result of ``identify``.
        root: the root that the identity must have, 64 hex digits. Files beside weights are no evidence by themselves: pass
            the root that you trust.

    Raises VerificationError for another root, and PlanError for a text that is not a root; MissingError if the folder has no identity;
    CorruptError if its files are damaged; TreeError as ``save``; MissingPackageError without jax or the extra. Arrays that differ do not
    raise; the report lists them.

    >>> prove(params, "identity", root="d0c8…").is_ok  # doctest: +SKIP
    True
    """
    from reshard.identity.identification import Identification
    from reshard.saving.options import check_jax

    check_jax("proving live arrays")
    from reshard.identity.identification import expected_weights
    from reshard.saving.prove_arrays import prove_arrays

    given = identity if isinstance(identity, Identification) else path_of("identity", identity)
    return prove_arrays(arrays, expected_weights(given, root, with_tree=True))
