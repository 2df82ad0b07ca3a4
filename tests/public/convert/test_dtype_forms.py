"""Dtypes as people write them, wherever a dtype is taken; each gives what the full name gives."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from tests.equal import assert_same
from tests.orbax_trees import save_pytree

TREE = {"w": np.linspace(-3, 3, 12, dtype=np.float32), "n": np.arange(3, dtype=np.int32)}
HALF = TREE["w"].astype(ml_dtypes.bfloat16)
FORMS = {
    "a name": "bfloat16",
    "a short name": "bf16",
    "upper case": "BF16",
    "of jax": jnp.bfloat16,
    "of ml_dtypes": ml_dtypes.bfloat16,
    "of numpy": np.dtype(ml_dtypes.bfloat16),
    "of an array": HALF.dtype,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_pytree(tmp_path_factory.mktemp("forms") / "c", TREE)


@pytest.mark.parametrize("dtype", FORMS.values(), ids=FORMS)
def test_restore_and_stream_take_every_form(source, dtype):
    assert_same(reshard.restore(source, cast={"float": dtype})["w"], HALF)
    assert_same(reshard.restore(source, cast=[("^w$", dtype)])["w"], HALF)
    stream = reshard.open_checkpoint(source).stream("w", dtype=dtype)
    assert (stream.dtype, b"".join(stream)) == ("bfloat16", HALF.tobytes())


@pytest.mark.parametrize("what", [np.float32, np.dtype("f4"), jnp.float32, "fp32", "f32", "F32"])
def test_the_left_side_may_be_a_dtype_too(source, what):
    found = reshard.restore(source, cast={what: "bf16"})
    assert_same(found["w"], HALF)
    assert_same(found["n"], TREE["n"])


def test_one_conversion_in_two_forms_is_the_same(source, tmp_path):
    target = tmp_path / "t"
    reshard.convert(source, target, cast={np.float32: jnp.bfloat16})
    assert_same(reshard.restore(target)["w"], HALF)
    again = reshard.convert(source, target, cast=[("float32", "bfloat16")])
    assert again.already_done
    found = reshard.verify(source, target, cast={"fp32": "bf16"})
    assert (found.differences, found.rules.cast) == (0, (("float32", "bfloat16"),))


def test_the_command_and_layout_files(source, tmp_path, capsys):
    assert run(["convert", str(source), str(tmp_path / "a"), "--cast", "float=bf16"]) == 0
    assert_same(reshard.restore(tmp_path / "a")["w"], HALF)
    assert run(["verify", str(source), str(tmp_path / "a"), "--cast", "fp32=bf16"]) == 0
    file = tmp_path / "layout.yaml"
    file.write_text("cast: [{match: fp32, dtype: 'fp8'}]\n")
    assert run(["convert", str(source), str(tmp_path / "b"), "--layout", str(file)]) == 1
    assert "layout.yaml:1: cast[0].dtype: unknown dtype 'fp8'" in capsys.readouterr().err
    file.write_text("cast: [{match: fp32, dtype: 'f16:saturate'}]\n")
    assert run(["convert", str(source), str(tmp_path / "b"), "--layout", str(file)]) == 0
    assert_same(reshard.restore(tmp_path / "b")["w"], TREE["w"].astype(np.float16))
    mapping = {"cast": [{"match": "float", "dtype": jnp.bfloat16}]}
    reshard.convert(source, tmp_path / "c", layout=mapping)
    assert_same(reshard.restore(tmp_path / "c")["w"], HALF)


def test_a_short_name_in_parentheses_is_searched_in_names(tmp_path):
    source = save_pytree(tmp_path / "c", {"bf16": np.ones(2, np.float32), "v": np.ones(2, "f4")})
    found = reshard.restore(source, cast={"(bf16)": "fp16"})
    assert (found["bf16"].dtype, found["v"].dtype) == (np.float16, np.float32)
    with pytest.raises(reshard.PlanError, match="none of the 2 tensors is bfloat16"):
        reshard.restore(source, cast={"bf16": "fp16"})


@pytest.mark.parametrize("dtype", [float, 16, None, np.dtype("U4"), TREE["w"]])
def test_what_is_no_dtype_is_refused(source, dtype):
    with pytest.raises(
        reshard.PlanError,
        match=r"(?s)cast is .*; expected pairs of a regular expression and a dtype",
    ):
        reshard.restore(source, cast={"float": dtype})


def test_an_unknown_name_lists_the_known_ones(source):
    with pytest.raises(reshard.PlanError) as refused:
        reshard.restore(source, cast={"float": "torch.bfloat16"})
    assert "cast 'float'='torch.bfloat16': no such dtype; expected one of: bool, int2" in str(
        refused.value
    )
    assert "short names bf16, fp16, fp32, fp64" in str(refused.value)
