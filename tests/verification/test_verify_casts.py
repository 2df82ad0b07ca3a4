"""``verify`` proves each cast: its result is compared with what the target stores, in any dtypes and little memory."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.formats.slices.slice_file import digest_of
from tests.orbax_trees import DTYPES, random_array, save_pytree, save_standard
from tests.verification.training_state import PARAMS

RNG = np.random.default_rng(5)


def test_what_a_cast_compares_is_the_cast_itself(trained, tmp_path):
    """Against another program's rounding, not against our own."""
    reshard.convert(trained, tmp_path / "b", cast={"kernel$": "bfloat16"}, select=["^params/"])
    (kernel,) = [
        t for t in reshard.verify(trained, tmp_path / "b").tensors if t.comparison == "cast"
    ]
    expected = np.asarray(jnp.asarray(PARAMS["dense"]["kernel"]).astype(jnp.bfloat16))
    assert kernel.digest_a == kernel.digest_b == digest_of(expected.tobytes())


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64", "complex64"]
)
@pytest.mark.parametrize("memory", ["16MiB", "64MiB"])
def test_every_cast_is_proved_in_a_bounded_stream(tmp_path, dtype, memory):
    tree = {d: random_array(RNG, (33, 4100), d) for d in ("float32", "float16", "float64")}
    source = save_pytree(tmp_path / "a", tree, chunk_byte_size=40_000, use_zarr3=True)
    reshard.convert(source, tmp_path / "b", cast={f"^{d}$": dtype for d in tree})
    found = reshard.verify(source, tmp_path / "b", max_memory=memory)
    kinds = {t.name: t.comparison for t in found.tensors}
    assert kinds == {d: "exact" if d == dtype else "cast" for d in tree}
    assert found.differences == 0


def test_integers_and_floats_by_name(tmp_path):
    names = [d for d in DTYPES if d.startswith(("int", "uint", "bool"))]
    tree = {d: random_array(RNG, (6, 8), d) for d in names}
    source = save_pytree(tmp_path / "a", tree)
    reshard.convert(source, tmp_path / "b", cast={f"^{n}$": "float32" for n in names})
    found = reshard.verify(source, tmp_path / "b")
    assert {t.comparison for t in found.tensors} == {"cast"}
    assert found.differences == 0


def test_a_target_that_is_not_this_cast_is_found(trained, tmp_path):
    """Another rounding of one element, in a B whose own records are true."""
    kernel = np.array(jnp.asarray(PARAMS["dense"]["kernel"]).astype(jnp.bfloat16))
    kernel.view(np.uint16)[3, 3] ^= 1
    b = save_standard(tmp_path / "b", {"params": {"dense": {"kernel": jnp.asarray(kernel)}}})
    found = reshard.verify(
        trained, b, select=["kernel$"], drop=["^opt/"], cast={"kernel$": "bfloat16"}
    )
    (verdict,) = found.tensors
    assert (verdict.status, verdict.detail) == (
        "different",
        "the stored bits differ from the result of the cast",
    )
    kernel.view(np.uint16)[3, 3] ^= 1
    good = save_standard(tmp_path / "good", {"params": {"dense": {"kernel": jnp.asarray(kernel)}}})
    found = reshard.verify(
        trained, good, select=["kernel$"], drop=["^opt/"], cast={"kernel$": "bfloat16"}
    )
    assert found.differences == 0


def test_saturating_casts_are_reported_as_such(tmp_path, capsys):
    source = save_standard(tmp_path / "a", {"w": np.float32([1.0, 1e9, -1e9])})
    for name, dtype in [("b", "float8_e4m3fn:saturate"), ("c", "float8_e4m3fn")]:
        reshard.convert(source, tmp_path / name, cast={"w": dtype})
        (verdict,) = reshard.verify(source, tmp_path / name).tensors
        assert (verdict.status, verdict.saturate) == ("equal", name == "b")
    (other,) = reshard.verify(source, tmp_path / "b", cast={"w": "float8_e4m3fn"}).tensors
    assert other.status == "different"
    assert run(["verify", str(source), str(tmp_path / "b")]) == 0
    assert "1 cast float32 → float8_e4m3fn saturating" in " ".join(capsys.readouterr().out.split())
