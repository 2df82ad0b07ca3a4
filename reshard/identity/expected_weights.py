"""The identity that arrays or slices must have, as a caller gives it: a folder with its files, or an identity that was read or computed."""

from __future__ import annotations

from reshard.errors import MissingError, VerificationError
from reshard.formats.record_names import IDENTITY_NAME
from reshard.identity.hashes import checked_root
from reshard.identity.identification import Identification
from reshard.identity.identity_file import folder_of_identity, read_identity
from reshard.identity.weights_identity import WeightsIdentity


def expected_weights(
    identity: str | Identification | WeightsIdentity, root: str | None, *, with_tree: bool
) -> WeightsIdentity:
    """The identity that weights must have.

    Args:
        identity: the folder of an ``identity.json``, or that file, as a path.
        with_tree: true if its nodes are needed; an identity that is given keeps those that it has.

    Raises PlanError for a root that is none, MissingError where a folder has none, VerificationError where its root is not the given
    one, and the errors of reading the files.
    """
    root = None if root is None else checked_root("root", root)
    if isinstance(identity, WeightsIdentity):
        where, found = "the identity", identity
    elif isinstance(identity, Identification):
        where = f"the identity of {identity.uri}"
        found = WeightsIdentity(
            identity.root, identity.contents, identity.rest, identity.tensors, identity.nodes
        )
    else:
        folder = folder_of_identity(identity)
        where = str(folder / IDENTITY_NAME)
        read = read_identity(folder, with_tree=with_tree)
        if read is None:
            raise MissingError(
                f"{where} does not exist: expected a folder with the files of an identity; reshard identify --out writes them"
            )
        found = read
    if root not in (None, found.root):
        raise VerificationError(
            f"{where} has the root {found.root}, but expected is {root}; take the files that belong to that root"
        )
    return found
