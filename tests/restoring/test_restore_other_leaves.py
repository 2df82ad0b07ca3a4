"""Leaves without data, and strings, where the template has an array or a number; beside what stock Orbax does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.equal import assert_same, assert_same_trees
from tests.orbax_trees import save_pytree

Struct = jax.ShapeDtypeStruct
STORED = {"ema": None, "empty": {}, "list": [], "name": "adam", "w": np.arange(4.0, dtype="f4")}
FITTING = {"ema": None, "empty": {}, "list": [], "name": "", "w": Struct((4,), np.float32)}
ARRAYS = {
    "a struct": Struct((4,), jnp.bfloat16),
    "a jax array": jnp.zeros(4, jnp.bfloat16),
    "a numpy array": np.zeros(4, jnp.bfloat16),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return save_pytree(tmp_path_factory.mktemp("other") / "c", STORED)


def refusal(path, like, **options):
    with pytest.raises(reshard.TreeError) as found:
        reshard.restore(path, like, **options)
    return str(found.value)


def test_a_template_with_the_same_empty_leaves_gets_them(stored):
    found = reshard.restore(stored, FITTING)
    assert_same_trees(found, {**STORED, "w": jnp.arange(4.0)})


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize(
    "name, words",
    [("ema", "None"), ("empty", "an empty dict"), ("list", "an empty list")],
)
def test_an_array_where_the_checkpoint_has_no_data_is_missing(stored, array, name, words):
    text = refusal(stored, {**FITTING, name: array})
    assert "  asked for, but not in the checkpoint: 1 (rename= gives stored leaves other" in text
    assert f"    {name} (bfloat16 of shape [4]), where the checkpoint has {words}" in text


@pytest.mark.parametrize(
    "leaf", [jax.random.key(0), 3, 2.5, "text"], ids=["key", "int", "float", "str"]
)
def test_a_key_a_number_or_a_string_where_the_checkpoint_has_none_is_missing(stored, leaf):
    text = refusal(stored, {**FITTING, "ema": leaf})
    assert "not in the checkpoint: 1" in text
    assert text.endswith(", where the checkpoint has None")


def test_a_string_is_no_array_and_an_array_no_string(stored):
    text = refusal(stored, {**FITTING, "name": ARRAYS["a struct"], "w": "text"})
    assert "  of another kind: 2\n" in text
    assert "    name is a string, but bfloat16 of shape [4] is asked for" in text
    assert "    w is float32 of shape [4], but a str is asked for" in text
    assert "name is a string" in refusal(
        stored, {**FITTING, "name": np.zeros(2)}, missing="keep"
    )  # a value of another kind does not count as missing


def test_missing_keep_keeps_what_the_checkpoint_has_no_data_for(stored):
    kept = {"ema": jnp.full(4, 7.0), "empty": np.ones(3), "list": 5}
    found = reshard.restore(stored, {**FITTING, **kept}, missing="keep")
    assert all(found[name] is leaf for name, leaf in kept.items())
    assert_same(np.asarray(found["w"]), STORED["w"])


def test_into_refuses_a_buffer_without_data_and_keeps_it_when_asked(stored):
    ema, w = np.full(4, 9, np.float32), np.zeros(4, np.float32)
    with pytest.raises(reshard.TreeError) as refused:
        reshard.restore(stored, into={"ema": ema, "w": w}, unexpected="ignore")
    assert "    ema (float32 of shape [4]), where the checkpoint has None" in str(refused.value)
    assert not w.any()
    reshard.restore(stored, into={"ema": ema, "w": w}, missing="keep", unexpected="ignore")
    assert_same(ema, np.full(4, 9, np.float32))
    assert_same(w, STORED["w"])


@pytest.mark.parametrize("empty", [None, {}, []], ids=["None", "dict", "list"])
def test_an_array_where_the_template_has_nothing_is_unexpected(tmp_path, empty):
    tree = {"ema": np.ones(4, np.float32), "w": np.arange(4, dtype=np.float32)}
    path = save_pytree(tmp_path / "c", tree)
    like = {"ema": empty, "w": Struct((4,), np.float32)}
    text = refusal(path, like)
    assert "in the checkpoint, but not asked for: 1 (unexpected='ignore' leaves them out" in text
    assert "    ema (float32 of shape [4])" in text
    stock = ocp.StandardCheckpointer().restore(path, like)  # leaves it out without a word
    assert_same_trees(reshard.restore(path, like, unexpected="ignore"), stock)


def test_stock_orbax_refuses_an_array_where_it_has_none(tmp_path):
    path = save_pytree(tmp_path / "c", {"ema": None, "w": np.zeros(4, np.float32)})
    like = {"ema": Struct((4,), np.float32), "w": Struct((4,), np.float32)}
    with pytest.raises(ValueError, match="not found in metadata_tree"):
        ocp.StandardCheckpointer().restore(path, like)
    assert "    ema (float32 of shape [4]), where the checkpoint has None" in refusal(path, like)
