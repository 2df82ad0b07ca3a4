"""``reshard identify`` and ``sign``."""

from __future__ import annotations

from msgspec.structs import asdict

import reshard
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import Source


def identify(
    src: Source,
    *,
    chosen: Chosen,
    write: bool = False,
    out: str | None = None,
    sha256: bool = False,
    resources: Resources,
    output: Output,
) -> None:
    """Show the identity of the weights: one root, whatever their mesh, chunks, codec and format.

    Reads every byte once. Two checkpoints have the same root if names, dtypes, shapes and every bit of their tensors are
    the same. Nobody can make other weights with the same root, so that the root can be published, signed (reshard sign)
    and checked (reshard verify --identity).

    fingerprint records faster checksums in a checkpoint, which find accidents, but not intent. Needs the extra identity.

    Options:
        --write: Write identity.json and identity.tree into the checkpoint.
        --out DIR: Write them into this folder instead.
        --sha256: Write sha256.json beside them: the SHA-256 of each tensor's row-major bytes, by name. Reads each tensor a second time.

    Examples:
        $ reshard identify ckpt/1000
        $ reshard identify ckpt/1000 --write
        $ reshard identify served --out identities/served
        $ reshard identify ckpt --step latest --json
    """
    src = chosen.of(src)
    with output.watching() as progress:
        found = reshard.identify(
            src, unlisted=chosen.unlisted, write=write, out=out, sha256=sha256, **asdict(resources), progress=progress
        )  # fmt: skip
    output.tell("identify", found, "inspection.identity_view", output.show_all)


def sign(
    src: Source,
    *,
    key: str,
    chosen: Chosen,
    out: str | None = None,
    name: str | None = None,
    version: str | None = None,
    resources: Resources,
    output: Output,
) -> None:
    """Sign the weights of a checkpoint, so that others can prove what they serve.

    Reads every byte, computes the root of the weights (see reshard identify), and writes identity.json, identity.tree and
    identity.dsse.json, the signature of the root: a DSSE envelope around an in-toto Statement. A copy of the same weights
    in another layout or format has the same root, so that the same signature holds for it.

    reshard verify --key PUB.pem checks the signature and computes the root anew. --name and --version are signed too, with the time: without
    them an older checkpoint and its own signature pass for the newest.

    Options:
        --key PEM: The private key, not encrypted: Ed25519 or ECDSA on P-256 (openssl genpkey -algorithm ed25519).
        --out DIR: Write into this folder. Default: into the checkpoint.
        --name: The name of the model, which is signed.
        --version N: Its version, which is signed: a whole number, such as the step, has an order.

    Examples:
        $ reshard sign ckpt/1000 --key release.pem
        $ reshard sign served --key release.pem --out identities/served
        $ reshard sign ckpt/1000 --key release.pem --name llama --version 1000
        $ reshard verify served --key release.pub.pem
    """
    src = chosen.of(src)
    with output.watching() as progress:
        found = reshard.sign(
            src, key, unlisted=chosen.unlisted, out=out, name=name, version=version, **asdict(resources), progress=progress
        )  # fmt: skip
    output.tell("sign", found, "inspection.identity_view", output.show_all)
