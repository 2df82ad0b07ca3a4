"""A template of other dtypes: one line names the rule that is right, and the rule works."""

from __future__ import annotations

import re
from ast import literal_eval

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reshard
from tests.equal import assert_same_trees
from tests.orbax_trees import save_pytree

LAYERS = {f"layers/{i:02d}": np.full((2, 3), i, np.float32) for i in range(17)}


def struct(array, dtype=None):
    return jax.ShapeDtypeStruct(np.shape(array), dtype or array.dtype)


def refused(path, like, **options):
    with pytest.raises(reshard.TreeError) as found:
        reshard.restore(path, like, **options)
    return str(found.value)


def section(text):
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  of another dtype"))
    return [line.strip() for line in lines[at:]]


def advised(text):
    """The casts that the lines advise."""
    return [literal_eval(found) for found in re.findall(r"cast=(\{.*?\}|\[.*?\])", text)]


def test_one_rule_for_every_floating_tensor(tmp_path):
    tree = {**LAYERS, "last": np.ones(4, np.float32), "n": np.arange(3, dtype=np.int32)}
    path = save_pytree(tmp_path / "c", tree)
    like = {n: struct(a, jnp.bfloat16 if a.dtype == np.float32 else None) for n, a in tree.items()}
    text = refused(path, like)
    assert section(text) == [
        "of another dtype: 18",
        "18 tensors are float32, but bfloat16 is asked for (last, layers/00, layers/01 and 15 more); "
        "cast={'float': 'bfloat16'} converts them",
    ]
    found = reshard.restore(path, like, cast=advised(text)[0])
    assert_same_trees(found, jax.tree.map(lambda a, s: jnp.asarray(a).astype(s.dtype), tree, like))


def test_several_stored_dtypes_become_one(tmp_path):
    tree = {"a": np.ones(2, np.float32), "b": np.ones(2, jnp.bfloat16), "c": np.ones(2, np.float64)}
    path = save_pytree(tmp_path / "c", tree)
    like = {n: struct(a, np.float16) for n, a in tree.items()}
    text = refused(path, like)
    assert section(text)[1:] == [
        "3 tensors are float32 or bfloat16 or float64, but float16 is asked for (a, b, c); cast={'float': 'float16'} "
        "converts them"
    ]
    found = reshard.restore(path, like, cast=advised(text)[0])
    assert {a.dtype for a in found.values()} == {np.dtype(np.float16)}


def test_other_floats_and_python_numbers_keep_their_dtype(tmp_path):
    """A rule for every float would change the others."""
    tree = {**LAYERS, "wide": np.ones(2, np.float64), "rate": 0.1}
    path = save_pytree(tmp_path / "c", tree)
    like = {n: struct(a, jnp.bfloat16) for n, a in LAYERS.items()}
    like |= {"wide": np.ones(2), "rate": 0.0}
    text = refused(path, like)
    assert section(text)[1].endswith("; cast={'float32': 'bfloat16'} converts them")
    found = reshard.restore(path, like, cast=advised(text)[0])
    assert (found["rate"], found["wide"].dtype) == (0.1, np.float64)
    assert found["layers/03"].dtype == jnp.bfloat16


def test_tensors_that_no_dtype_tells_apart_are_named(tmp_path):
    tree = {
        "kernel": np.ones(2, np.float32),
        "bias": np.ones(2, np.float32),
        "n": np.int32([1, 2]),
        "m": np.int32([3]),
    }
    path = save_pytree(tmp_path / "c", tree)
    like = {
        "kernel": struct(tree["kernel"], jnp.bfloat16), "bias": struct(tree["bias"]),
        "n": struct(tree["n"], np.float32), "m": struct(tree["m"], np.float32),
    }  # fmt: skip
    text = refused(path, like)
    assert sorted(section(text)[1:]) == [
        "kernel is float32, but bfloat16 is asked for; cast=[('kernel', 'bfloat16')] converts it",
        "m is int32, but float32 is asked for; cast=[('m', 'float32')] converts it",
        "n is int32, but float32 is asked for; cast=[('n', 'float32')] converts it",
    ]


def test_what_jax_would_narrow_is_one_line_too(tmp_path):
    tree = {f"w{i}": np.full(8, i, np.float64) for i in range(5)}
    tree["n"] = np.arange(8, dtype=np.float32)
    path = save_pytree(tmp_path / "c", tree)
    layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layouts["w"] = ("x",)
    text = refused(path, None, layout=layouts)
    assert section(text) == [
        "of another dtype: 5",
        "5 tensors are float64, which jax would narrow to float32 (w0, w1, w2 and 2 more); set jax_enable_x64, take them "
        "out of the layout, so that they stay numpy arrays, or cast={'float64': 'float32'}",
    ]
    found = reshard.restore(path, layout=layouts, cast=advised(text)[0])
    assert found["w4"].dtype == np.float32
    like = {n: struct(a) for n, a in tree.items()}
    assert "restore them as numpy arrays, or cast={'float64': 'float32'}" in refused(path, like)


def test_a_wide_dtype_that_is_asked_for_is_narrowed_too(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": np.ones(2, np.float32)})
    assert section(refused(path, {"w": jax.ShapeDtypeStruct((2,), np.dtype("f8"))}))[1:] == [
        "w becomes float64, which jax would narrow to float32; set jax_enable_x64, restore it as a numpy array, or ask for "
        "float32"
    ]


def test_numpy_buffers_have_one_line_too(tmp_path):
    path = save_pytree(tmp_path / "c", LAYERS)
    buffers = {n: np.zeros((2, 3), jnp.bfloat16) for n in LAYERS}
    text = refused(path, None, into=buffers)
    assert section(text)[0] == "of another dtype: 17"
    assert len(section(text)) == 2
    reshard.restore(path, into=buffers, cast=advised(text)[0])
    assert buffers["layers/16"][0, 0] == 16
