"""Steps that stock Orbax saved on one mesh, handed over as a delta, and served on another: what a conversion of the later step gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.formats.delta.read_delta import open_delta
from reshard.storage.location import locate
from tests.delta_layout import apply_delta, stored
from tests.orbax_trees import mesh, put, save_pytree, save_standard

TO_HF = {
    "map": {
        "drop": ["^opt/"],
        "map": [
            {"from": "params/layers/kernel", "to": "layers.{l}.weight", "shape": "l i o -> o i"},
            {"from": "params/embed", "to": "embed.weight", "cast": "bfloat16"},
            {"from": "params/expert/q", "to": "expert.weight"},
            {"from": "params/expert/scale", "to": "expert.weight_scale_inv"},
        ],
    }
}


def training_step(number: int) -> dict[str, Any]:
    """On a mesh of 4 by 2; from one to the next few elements change, -0.0, a NaN and a denormal among them."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 16, 24)).astype(ml_dtypes.bfloat16)
    embed = rng.normal(size=(64, 32)).astype("f4")
    expert = rng.integers(0, 100, (32, 16), dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    embed[:2, :2] = 0.0
    if number:
        kernel[1, 3, ::7] += ml_dtypes.bfloat16(0.5)
        embed[0, :2] = [-0.0, np.nan]
        embed[40, 8:11] = [np.inf, 1e-40, 3.0]
        expert[5, 5] = ml_dtypes.float8_e4m3fn(-2)
    on = mesh((4, 2))
    return {
        "params": {
            "layers": {"kernel": put(kernel, None, "data", "model", on=on)},
            "embed": put(embed, "data", "model", on=on),
            "expert": {"q": put(expert, "model", None, on=on), "scale": np.ones((1, 1), "f4")},
        },
        "opt": {"mu": put(embed * number, "data", on=on)},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, in two forms of Orbax, and the delta between them, on a first version that was converted."""
    folder = tmp_path_factory.mktemp("run")
    save_standard(folder / "100", training_step(0))
    save_pytree(folder / "200", training_step(1), use_ocdbt=False, use_zarr3=True)
    reshard.convert(folder / "100", folder / "v0", to="safetensors", files="shards", file_bytes=2000, **TO_HF)  # fmt: skip
    reshard.convert(folder / "200", folder / "v1", to="safetensors", **TO_HF)
    reshard.delta(folder / "v0", folder / "200", folder / "weight_v000001", **TO_HF)
    return folder


def test_a_receiver_makes_of_it_what_a_conversion_gives(run: Path) -> None:
    assert apply_delta(run / "weight_v000001", stored(run / "v0")) == stored(run / "v1")
    changed = reshard.inspect_versions(run / "weight_v000001")[0].changed
    assert changed == 3  # a layer, the embedding, the expert; not its scale


LAYOUT = {
    "mesh": {"axes": ["model"], "shape": [8]},
    "rules": [{"match": r"embed|expert\.weight$", "axes": [None, "model"]}],
    "unmatched": "replicate",
}


@pytest.mark.parametrize(
    "options",
    [
        {"to": "orbax", "layout": LAYOUT},
        {"to": "orbax", "mesh": "model=4", "ocdbt": True, "compression": "zstd"},
        {"to": "safetensors", "layout": LAYOUT, "files": "ranks"},
        {"to": "dcp"},
    ],
    ids=["orbax", "ocdbt", "ranks", "dcp"],
)
def test_on_another_mesh_and_in_another_format(
    options: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    reshard.convert(run / "v1", tmp_path / "converted", **options)
    reshard.apply(run / "v0", [run / "weight_v000001"], tmp_path / "applied", **options)
    assert reshard.verify(tmp_path / "applied", tmp_path / "converted").differences == 0
    digests = [
        {name: one.digest for name, one in reshard.inspect(tmp_path / place).tensors.items()}
        for place in ("applied", "converted")
    ]
    assert digests[0] == digests[1]
    assert all(digests[0].values())


def test_the_digest_of_the_version_and_its_identity_are_those_of_the_conversion(
    run: Path, tmp_path: Path
) -> None:
    index = open_delta(locate(str(run / "weight_v000001"))).index
    again = tmp_path / "weight_v000002"
    reshard.delta(run / "v1", run / "v1", again)
    assert open_delta(locate(str(again))).index.base_digest == index.target_digest
    reshard.apply(run / "v0", [run / "weight_v000001"], tmp_path / "served")
    assert reshard.identify(tmp_path / "served").root == reshard.identify(run / "v1").root
