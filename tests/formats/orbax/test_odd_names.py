"""Names with slashes at odd places, which stock Orbax saves and restores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import FormatError, PlanError
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


X = jnp.arange(32.0).reshape(8, 4)


@pytest.mark.parametrize("how", [{}, {"ocdbt": True}, {"style": "v1"}, {"to": "safetensors"}])
@pytest.mark.parametrize(
    "tree",
    [X, 7, {"": X}, {"": X, "a": {"b": X + 1}}],
    ids=["bare", "number", "alone", "not alone"],
)
def test_an_array_without_a_name_is_converted(tree, how, tmp_path):
    """And one that is the whole tree: stock Orbax has both at the top of the item."""
    path = save_pytree(tmp_path / "c", tree, use_ocdbt=False)
    layout = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("x", "y")))
    layout["^$"] = ("x", "y")
    given = {} if isinstance(tree, int) or "to" in how else {"layout": layout}
    reshard.convert(path, tmp_path / "to", check="readback", **how, **given)
    assert reshard.verify(path, tmp_path / "to").differences == 0
    assert reshard.verify(tmp_path / "to").differences == 0
    if "to" in how:  # its names are no tree; the record beside it is
        reshard.convert(tmp_path / "to", tmp_path / "back", to="orbax")
    of = {"style": "to/state", "to": "back"}
    found = stock(tmp_path / of.get(next(iter(how), ""), "to"))
    jax.tree.map(np.testing.assert_array_equal, found, stock(path))


def test_an_array_without_a_name_becomes_no_file_of_keras(tmp_path):
    path = save_pytree(tmp_path / "c", X)
    with pytest.raises(PlanError, match=r"the name '' is no path in an HDF5 file: .*; rename it"):
        reshard.convert(path, tmp_path / "to.weights.h5")
    reshard.convert(path, tmp_path / "to.weights.h5", rename={"^$": "w"})
    assert reshard.restore(tmp_path / "to.weights.h5")["w"].tolist() == X.tolist()


def test_a_long_name_in_a_database_is_converted(tmp_path):
    """No file bears it."""
    path = save_pytree(tmp_path / "c", tree_of(["n" * 3000, "é" * 4096]), use_ocdbt=True)
    with pytest.raises(FormatError, match="needs a file name of"):
        reshard.convert(path, tmp_path / "to")
    reshard.convert(path, tmp_path / "to", ocdbt=True)
    jax.tree.map(np.testing.assert_array_equal, stock(tmp_path / "to"), stock(path))


def test_names_that_share_a_folder_are_refused(tmp_path):
    path = save_pytree(tmp_path / "c", tree_of(["a", "a/"]), use_ocdbt=False)
    with pytest.raises(FormatError, match=r"the paths \('a'\) and \('a/'\) both become 'a'"):
        reshard.restore(path)
