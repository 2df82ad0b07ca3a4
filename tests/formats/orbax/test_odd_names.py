"""Names with slashes at odd places, which stock Orbax saves and restores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import FormatError
from tests.orbax_trees import save_pytree

IN_FOLDERS = ("a/", "b/c/", "d.")
IN_DATABASES = (*IN_FOLDERS, "a//b", "/a", "e/.", "..", "e/../b")


def stock(path):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))


def tree_of(names):
    return {name: jnp.arange(4.0) + number for number, name in enumerate(names, 1)}


@pytest.mark.parametrize(
    ("names", "ocdbt"), [(IN_FOLDERS, False), (IN_DATABASES, True)], ids=["plain", "ocdbt"]
)
def test_what_stock_orbax_restores_is_restored(names, ocdbt, tmp_path):
    path = save_pytree(tmp_path / "c", tree_of(names), use_ocdbt=ocdbt)
    expected, found = stock(path), reshard.restore(path)
    assert set(found) == set(expected) == set(names)
    assert all(np.array_equal(found[name], expected[name]) for name in names)
    assert reshard.plan(path).missing_chunks == {}


@pytest.mark.parametrize("ocdbt", [False, True])
def test_a_slash_at_the_end_is_converted(ocdbt, tmp_path):
    path = save_pytree(tmp_path / "c", tree_of(IN_FOLDERS), use_ocdbt=False)
    reshard.convert(path, tmp_path / "to", ocdbt=ocdbt, check="readback")
    found = stock(tmp_path / "to")
    assert {k: v.tolist() for k, v in found.items()} == {
        k: v.tolist() for k, v in stock(path).items()
    }
    assert reshard.verify(path, tmp_path / "to").differences == 0


def test_a_name_of_a_database_that_is_no_path_is_renamed_or_refused(tmp_path):
    path = save_pytree(tmp_path / "c", tree_of(["../up"]), use_ocdbt=True)
    with pytest.raises(FormatError, match=r"'\.\./up', whose part '\.\.' is not a safe file name"):
        reshard.convert(path, tmp_path / "to")
    reshard.convert(path, tmp_path / "to", rename={r"\.\./": ""})
    assert stock(tmp_path / "to")["up"].tolist() == [1, 2, 3, 4]


def test_names_that_share_a_folder_are_refused(tmp_path):
    path = save_pytree(tmp_path / "c", tree_of(["a", "a/"]), use_ocdbt=False)
    with pytest.raises(FormatError, match=r"the paths \('a'\) and \('a/'\) both become 'a'"):
        reshard.restore(path)
