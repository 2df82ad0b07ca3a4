"""Tensors that a layout does not name: warned of, refused on request, and numpy if they were numpy."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard.variables import Variable, materialize
from tests.orbax_trees import mesh, put, save_standard, save_v1

MESH = reshard.DeviceMesh((8,), ("x",))


def training_state():
    """A Flax model's parameters, its optimizer, and the state of a data iterator."""
    params = nnx.to_pure_dict(nnx.state(nnx.Linear(16, 8, rngs=nnx.Rngs(0))))
    params = jax.tree.map(put, params)
    seen = {"position": np.arange(3), "shuffle": np.arange(8, dtype=np.uint64), "rate": np.ones(2)}
    return {"params": params, "opt": optax.adam(1e-3).init(params), "data": seen, "step": 3}


@pytest.fixture(scope="module", params=[save_standard, save_v1])
def saved(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("unnamed") / "c", training_state())


def layout_map(*keys, **options):
    layouts = reshard.LayoutMap(MESH, **options)
    for key in keys:
        layouts[key] = ("x",)
    return layouts


def layout_file(*keys, **options):
    rules = [{"match": key, "axes": ["x"]} for key in keys]
    return {"mesh": {"x": 8}, "rules": rules, **options}


@pytest.mark.parametrize("layout", [layout_map, layout_file])
def test_keys_that_match_nothing_are_warned_of_as_by_convert(saved, tmp_path, layout):
    made = layout("kernel", "krenel")
    planned = reshard.plan(saved, tmp_path / "out", layout=made).warnings
    told = [text for text in planned if "krenel" in text]
    assert told
    assert told[0].endswith("matches no tensor; the nearest name is 'kernel': write 'kernel'")
    with pytest.warns(reshard.LayoutWarning) as caught:
        reshard.restore(saved, layout=made)
    assert [str(w.message) for w in caught if w.category is reshard.LayoutWarning] == told
    assert caught[0].filename == __file__
    with pytest.warns(reshard.LayoutWarning) as caught:
        reshard.open_checkpoint(saved).restore(layout=made)
    assert caught[0].filename == __file__
    reports = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", reshard.LayoutWarning)
        reshard.restore(saved, layout=made, report=reports.append)
        reshard.restore(saved, layout=layout("kernel"))
    assert list(reports[0].warnings) == told


def test_a_map_may_refuse_what_it_does_not_name(saved, tmp_path):
    strict = layout_map("params/kernel", unmatched="error")
    words = r"^'[\w/]+' matches no key of the layout map, which has unmatched='error'; set a key for it, or make"
    for call in (
        lambda: reshard.convert(saved, tmp_path / "out", layout=strict),
        lambda: reshard.restore(saved, layout=strict),
        lambda: reshard.save(tmp_path / "saved", {"w": np.zeros(8)}, layout=strict),
        lambda: reshard.distribute_tensor(np.zeros(8), strict["w"]),
        lambda: strict.copy()["w"],
        lambda: strict.to_keras()["w"],
        lambda: reshard.LayoutMap.from_keras(strict.to_keras()).get("w"),
    ):
        with pytest.raises(reshard.LayoutError, match=words):
            call()
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "saved").exists()
    assert strict["params/kernel"].axes == ("x",)
    assert strict.match("w") == []
    named = reshard.restore(saved, layout=strict, select=["params/kernel"])
    assert named["params"]["kernel"].sharding.spec == PartitionSpec("x")


def test_a_lazy_variable_that_no_key_matches_is_refused():
    class Model:
        def __init__(self):
            self.kernel = Variable(jax.numpy.zeros, (8,), "float32")
            self.bias = Variable(jax.numpy.zeros, (8,), "float32")

    with layout_map("kernel", unmatched="error").scope():
        model = Model()
    with pytest.raises(reshard.LayoutError, match=r"^'bias' matches no key of the layout map"):
        materialize(model)


def test_an_unknown_choice_is_refused():
    with pytest.raises(
        reshard.LayoutError, match=r"^unmatched='raise' is not one of 'replicate', 'error'$"
    ):
        reshard.LayoutMap(MESH, unmatched="raise")


@pytest.mark.parametrize("layout", [layout_map, layout_file])
def test_numpy_leaves_that_nothing_names_stay_numpy(saved, layout):
    reports = []
    found = reshard.restore(saved, layout=layout("kernel"), report=reports.append)
    wanted = training_state()
    for name, array in wanted["data"].items():
        assert isinstance(found["data"][name], np.ndarray)
        assert found["data"][name].dtype == array.dtype
        np.testing.assert_array_equal(found["data"][name], array)
    assert isinstance(
        found["params"]["bias"], jax.Array
    )  # a jax array that nothing names: replicated
    assert found["params"]["kernel"].sharding.spec[0] == "x"
    assert sorted(reports[0].numpy) == ["data/position", "data/rate", "data/shuffle"]


@pytest.mark.parametrize("layout", [layout_map, layout_file])
def test_a_numpy_leaf_that_is_named_is_made_a_jax_array_or_refused(saved, layout):
    with pytest.raises(reshard.TreeError) as caught:
        reshard.restore(saved, layout=layout("kernel", "data/shuffle$"))
    assert (
        "data/shuffle is uint64, which jax would narrow to uint32; set jax_enable_x64, take it out of the layout, "
        "so that it stays a numpy array, or cast=[('data/shuffle', 'uint32')]"
    ) in str(caught.value)
    assert "position" not in str(caught.value)
    cast = [("shuffle", "uint32")]
    found = reshard.restore(saved, layout=layout("kernel", "data/shuffle$"), cast=cast)
    assert found["data"]["shuffle"].sharding.spec[0] == "x"
    assert isinstance(found["data"]["position"], np.ndarray)


def test_none_in_a_tree_of_shardings_leaves_numpy_leaves_numpy(saved):
    everywhere = NamedSharding(mesh((8,), ("x",)), PartitionSpec())
    tree = {"params": everywhere, "opt": everywhere, "data": None}
    found = reshard.restore(saved, layout=tree)
    assert isinstance(found["data"]["position"], np.ndarray)
    assert found["params"]["kernel"].sharding == everywhere
