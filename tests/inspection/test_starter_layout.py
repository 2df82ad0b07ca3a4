"""Starter layouts: laid out by its own starter, every tensor has the axes that it had."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import flax.linen
import flax.nnx
import flax.training.train_state
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.cli.app import run
from reshard.geometry.grid import Grid
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.inspection.starter_layout import starter_text
from reshard.layout.axes import known_axes
from reshard.layout.device_mesh import parse_mesh
from reshard.layout.layout_file import layout_for, overlaps, unmatched_rules
from reshard.layout.layout_text import parse_yaml
from reshard.layout.read_layout import parse_layout
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from tests.cli.specimens import info
from tests.layout.tensor_names import NAMES
from tests.orbax_trees import put

Capture = pytest.CaptureFixture[str]
Axes = tuple[Any, ...]

MESH = reshard.DeviceMesh((4, 2), ("data", "model"))
AXES = st.none() | st.sampled_from(
    [(), ("model",), (None, "model"), ("data", "model"), (("data", "model"), None), (None, "data")]
)


def info_of(tree: dict[str, Axes | None]) -> CheckpointInfo:
    """A checkpoint of tensors of shape (8, 16), whose layouts are these."""
    specs = [
        TensorSpec(
            name, (8, 16), "float32", Grid.whole((8, 16)),
            layout=None if axes is None else TensorLayout(axes, MESH),
        )
        for name, axes in tree.items()
    ]  # fmt: skip
    return info(*specs)


def axes_by(text: str, names: list[str]) -> dict[str, Axes]:
    """What the layout file's text gives each tensor; without overlaps, and every rule at work."""
    file = parse_layout(parse_yaml(text, "starter").data)
    assert list(overlaps(file, names)) == []
    assert unmatched_rules(file, names) == []
    return {name: layout_for(file, name, (8, 16), "float32").layout.axes for name in names}


def padded(axes: Axes | None) -> Axes:
    axes = axes or ()
    return (*axes, *[None] * (2 - len(axes)))


@given(st.dictionaries(NAMES, AXES, max_size=20))
def test_any_tree_gets_the_axes_that_it_has(tree):
    if not any(axes is not None for axes in tree.values()):
        tree["recorded"] = ("model",)
    found = info_of(tree)
    kept = axes_by(starter_text(found, None, "error"), list(tree))
    assert kept == {name: padded(axes) for name, axes in tree.items()}

    line = reshard.DeviceMesh((8,), ("model",))
    replicated = axes_by(starter_text(found, line, "replicate"), list(tree))
    assert replicated == {
        name: padded(known_axes(axes or (), ["model"])) for name, axes in tree.items()
    }


@given(st.lists(NAMES, max_size=20, unique=True))
def test_a_proposal_can_be_laid_out(names):
    text = starter_text(info_of(dict.fromkeys(names)), None, "error")
    assert axes_by(text, names) == dict.fromkeys(names, (None, "model"))


def by_rank(leaf: Any) -> Any:
    """Matrices and more over both axes, the rest replicated."""
    return put(leaf, *[None] * (leaf.ndim - 2), "data", "model") if leaf.ndim > 1 else put(leaf)


def maxtext() -> Any:
    def block() -> Any:
        return {
            "self_attention": {
                **{n: {"kernel": put(np.ones((16, 4, 8, 4), "f4"), "data", None, "model")} for n in ("query", "key", "value")},
                "out": {"kernel": put(np.ones((8, 4, 4, 16), "f4"), "model", None, None, "data")},
            },
            "mlp": {
                **{n: {"kernel": put(np.ones((16, 4, 32), "f4"), "data", None, "model")} for n in ("wi_0", "wi_1")},
                "wo": {"kernel": put(np.ones((32, 4, 16), "f4"), "model", None, "data")},
            },
            "pre_norm": {"scale": put(np.ones((16, 4), "f4"), "data")},
        }  # fmt: skip

    def params() -> Any:
        return {"decoder": {"layers": block(), "decoder_norm": {"scale": put(np.ones(16, "f4"))}},
                "token_embedder": {"embedding": put(np.ones((64, 16), "f4"), "model", "data")}}  # fmt: skip

    return {
        "params": {"params": params()},
        "opt_state": [{"mu": params(), "nu": params(), "count": jnp.int32(1)}],
        "step": jnp.int32(3),
    }


def linen() -> Any:
    class Model(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(12):
                x = flax.linen.relu(flax.linen.Dense(16)(x))
            return flax.linen.Dense(8)(x)

    params = Model().init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    state = flax.training.train_state.TrainState.create(
        apply_fn=None, params=params, tx=optax.adamw(1e-3)
    )
    return jax.tree.map(lambda x: by_rank(jnp.asarray(x)), state)


def nnx() -> Any:
    model = flax.nnx.List([flax.nnx.Linear(16, 16, rngs=flax.nnx.Rngs(i)) for i in range(12)])
    optimizer = flax.nnx.Optimizer(model, optax.adamw(1e-3), wrt=flax.nnx.Param)
    return jax.tree.map(by_rank, {"model": flax.nnx.state(model), "opt": flax.nnx.state(optimizer)})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "most"), [(maxtext, 6), (linen, 1), (nnx, 1)])
def test_few_rules_for_trees_that_people_have(
    tmp_path: Path, make: Any, most: int, capsys: Capture
) -> None:
    source, file = tmp_path / "ckpt", tmp_path / "starter.yaml"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(source, make())
    assert run(["layout", str(source), "--starter"]) == 0
    text = capsys.readouterr().out
    assert text == reshard.starter_layout(source)
    file.write_text(text)
    assert text.count("- {match") <= most, text

    drawn = reshard.preview_layout(source, file)
    assert drawn.warnings == ()
    for tensor in drawn.tensors:
        had = tensor.source_spec.layout
        rank = len(tensor.shape)
        own = had.axes if had is not None else ()
        assert tensor.target_axes is not None
        assert tensor.target_axes == (*own, *[None] * (rank - len(own))), tensor.source

    report = reshard.convert(source, tmp_path / "out", layout=file)
    assert report.warnings[:-1] == ()  # but for the source's missing checksums
    assert reshard.verify(source, tmp_path / "out").differences == 0


def test_the_text_says_how_much_each_rule_covers(tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / "ckpt"
    layers = [{"kernel": by_rank(np.ones((16, 8), "f4")), "bias": by_rank(np.ones(8, "f4"))} for _ in range(3)]  # fmt: skip
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            source, {"layers": layers, "embed": put(np.ones((8, 8), "f4"), None, "model")}
        )
    words = ["layout", str(source), "--starter"]
    assert run(words) == 0
    expected = f"""\
# Layout of '{source}'.
# Each tensor has the axes that the checkpoint records.
# A name is matched by a regular expression; axes has an entry for each dimension.
mesh: {{axes: [data, model], shape: [4, 2]}}
rules:
  # 3 tensors, 1.50 KiB, such as: 'layers/0/kernel' [16, 8]
  - {{match: '(^|/)kernel$', axes: [data, model]}}
  # 1 tensor, 256 B: 'embed' [8, 8]
  - {{match: '(^|/)embed$', axes: [null, model]}}
# whole on every device: 3 tensors, 96 B, such as: 'layers/0/bias' [8]
unmatched: replicate
"""
    assert capsys.readouterr().out == expected
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "command": "layout", "source": str(source), "starter": expected,
    }  # fmt: skip

    assert run([*words, "--mesh", "model=8", "--missing-axes", "error"]) == 1
    said = capsys.readouterr().err
    assert "keeps the source's axes [data, model] over the mesh (model=8)" in said
    assert "(--missing-axes replicate)" in said
    assert run([*words, "--mesh", "model=8", "--missing-axes", "replicate"]) == 0
    text = capsys.readouterr().out
    assert "# the mesh (model=8) has no axis 'data'; what it split is replicated instead" in text
    assert "- {match: '(^|/)(embed|kernel)$', axes: [null, model]}" in text


def test_a_checkpoint_without_axes_gets_a_proposal(tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / "numpy"
    tree = {"table": np.ones((64, 24)), "kernel": np.ones((8, 8)), "odd": np.ones((3, 5)), "bias": np.ones(8)}  # fmt: skip
    reshard.save(source, tree)
    assert run(["layout", str(source), "--starter"]) == 0
    text = capsys.readouterr().out
    assert "# The checkpoint records no axes (its arrays are numpy's, or of one device), so" in text
    assert "# The mesh is an example: put yours in its place." in text
    assert "mesh: {axes: [model], shape: [8]}" in text
    file = tmp_path / "starter.yaml"
    file.write_text(text)
    parts = {t.source: t.slices.parts for t in reshard.preview_layout(source, file).tensors}
    assert parts == {"table": (8, 1), "kernel": (1, 8), "odd": (1, 1), "bias": (1,)}

    assert run(["layout", str(source), "--starter", "--mesh", "data=2,tensor=3"]) == 0
    text = capsys.readouterr().out
    assert "example" not in text
    assert re.search(r"'\(\^\|/\)table\$', axes: \[null, tensor\]", text)


MESHES = {
    "x=4,y=2": (
        ("x", "y"), "Saved on the mesh (data=4, model=2). This is a proposal: it writes 'x' for 'data', 'y' for 'model'."
    ),
    "model=8": (
        (None, "model"), "Saved with axes that the mesh (model=8) lacks: 'data'; what they split is replicated instead."
    ),
    "tensor=8": ((None, "tensor"), "proposal: 'tensor' splits the largest dimension that it divides"),
    "a=2,b=2,c=2": ((None, "c"), "The checkpoint was saved on the mesh (data=4, model=2), which has other axes"),
    "data=3,model=2": ((None, "model"), "What the mesh (data=3, model=2) does not divide is left whole: 1 tensor, 512 B"),
    "model=2,data=4": (("data", "model"), "Each tensor has the axes that the checkpoint records."),
}  # fmt: skip
"""The axes that a tensor of (8, 16), split by data and model, gets over each mesh, and what a comment says."""


@pytest.mark.parametrize("mesh", MESHES)
def test_another_mesh_gets_a_proposal(mesh: str) -> None:
    axes, said = MESHES[mesh]
    text = starter_text(info_of({"w": ("data", "model"), "b": ()}), parse_mesh(mesh))
    assert f"# {said}" in text
    assert axes_by(text, ["w", "b"]) == {"w": axes, "b": (None, None)}
    layout_for(parse_layout(parse_yaml(text, "starter").data), "w", (8, 16), "float32")


def test_a_checkpoint_without_tensors() -> None:
    file = parse_layout(parse_yaml(starter_text(info(), None, "error"), "starter").data)
    assert file.rules == ()
