"""Lists whose items are dropped and renumbered: what stock Orbax restores of the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training import train_state

import reshard
from reshard.cli.app import run
from tests.orbax_trees import put, save_manager, save_pytree, save_standard, save_v1

LAYERS = 12
PRUNE = {f"^((?:.*/)?layers)/{old}/": rf"\1/{new}/" for new, old in enumerate((9, 10, 11))}
PRUNE_TO_TOP = {f"^params/layers/{old}/": f"blocks/{new}/" for new, old in enumerate((9, 10, 11))}
LAST_THREE = r"layers/(9|10|11)/"


def layer(number: int) -> dict[str, Any]:
    return {
        "attn": {"kernel": put(np.full((8, 8), number, np.float32), "data", "model")},
        "bias": put(np.full(4, -number, np.float32)),
    }


def trained() -> train_state.TrainState:
    params = {
        "embed": put(np.arange(32, dtype=np.float32).reshape(8, 4), "data"),
        "layers": [layer(i) for i in range(LAYERS)],
        "pair": (put(np.float32(1)), put(np.float32(2)), put(np.float32(3))),
        "digits": {"3": put(np.float32(3)), "4": put(np.float32(4))},
    }
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9))
    state = train_state.TrainState.create(apply_fn=None, params=params, tx=tx)
    # Values that tell the leaves apart.
    leaves, structure = jax.tree.flatten(state)
    leaves = [x + jnp.asarray(i, jnp.asarray(x).dtype) for i, x in enumerate(leaves)]
    return structure.unflatten(leaves)


STATE = trained()


@pytest.fixture(scope="module", params=["standard", "rich", "manager", "v1"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lists") / "source"
    if request.param == "rich":
        return save_pytree(path, STATE, rich_types=True)
    return {"standard": save_standard, "manager": save_manager, "v1": save_v1}[request.param](
        path, STATE
    )


def stock(path: Path, target: Any) -> Any:
    """What stock Orbax restores onto ``target``, whichever way the checkpoint was written."""
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
    if (path / "default").exists():
        with ocp.CheckpointManager(path.parent) as manager:
            return manager.restore(int(path.name), args=ocp.args.StandardRestore(shapes))
    if (path / "orbax.checkpoint").exists():
        return ocp.v1.load(path, shapes)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, shapes)


def same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def pruned(tree: Any) -> Any:
    """``tree`` with the last three of every list of twelve layers."""

    def is_layers(node: Any) -> bool:
        return isinstance(node, list) and len(node) == LAYERS

    return jax.tree.map(lambda x: x[9:] if is_layers(x) else x, tree, is_leaf=is_layers)


def test_pruned_layers_of_a_whole_training_state_stay_lists(source: Path, tmp_path: Path) -> None:
    drop = [r"layers/[0-8]/"]
    target = tmp_path / "3"
    report = reshard.convert(source, target, drop=drop, rename=PRUNE)
    assert not [w for w in report.warnings if "becomes a dict" in w]
    same(stock(target, pruned(STATE)), pruned(STATE))


def test_pruned_parameters_alone(source: Path, tmp_path: Path) -> None:
    select = [f"^params/{LAST_THREE}"]
    target = tmp_path / "3"
    reshard.convert(source, target, select=select, rename=PRUNE_TO_TOP)
    wanted = STATE.params["layers"][9:]
    same(stock(target, {"blocks": wanted}), {"blocks": wanted})
    names = sorted(reshard.inspect(target).tensors)
    assert names == [f"blocks/{i}/{leaf}" for i in range(3) for leaf in ("attn/kernel", "bias")]


def test_restored_live_they_are_lists_too(source: Path) -> None:
    found = reshard.restore(source, select=[f"^params/{LAST_THREE}"], rename=PRUNE)
    same(found["params"]["layers"], jax.tree.map(np.asarray, STATE.params["layers"][9:]))


def test_items_in_another_order(source: Path, tmp_path: Path) -> None:
    """Orbax rebuilds lists by appending, so the order in which they are written counts."""
    turned = {rf"^params/layers/{i}/": f"params/layers/{LAYERS - 1 - i}/" for i in range(LAYERS)}
    target = tmp_path / "3"
    reshard.convert(source, target, select=["^params/"], rename=turned)
    wanted = {"params": {**STATE.params, "layers": STATE.params["layers"][::-1]}}
    same(stock(target, wanted), wanted)


def test_two_lists_become_one_and_tuples_lose_items(source: Path, tmp_path: Path) -> None:
    rename = {
        r"^params/layers/(1)/bias$": "all/0",
        r"^params/pair/1$": "all/1",
        r"^params/layers/0/bias$": "all/2",
        r"^params/pair/2$": "params/pair/0",
        r"^params/digits/3$": "params/digits/0",
    }
    select = [r"layers/[01]/bias$", "^params/pair/[12]", "^params/digits/3"]
    drop = ["^opt_state"]
    target = tmp_path / "3"
    reshard.convert(source, target, select=select, drop=drop, rename=rename)
    params = STATE.params
    wanted = {
        "all": [params["layers"][1]["bias"], params["pair"][1], params["layers"][0]["bias"]],
        # A dict whose keys are digits stays a dict.
        "params": {"pair": (params["pair"][2],), "digits": {"0": params["digits"]["3"]}},
    }
    same(stock(target, wanted), wanted)


def test_optax_states_keep_their_tuples_where_a_link_of_the_chain_goes(tmp_path: Path) -> None:
    source = save_standard(tmp_path / "source", STATE)
    # Of (clip, adamw's (adam, decay, rate), ema) the ema goes, then the clipping.
    reshard.convert(source, tmp_path / "no_ema", drop=["^opt_state/2/"])
    clip, adamw, _ = STATE.opt_state
    wanted = STATE.replace(opt_state=(clip, adamw))
    same(stock(tmp_path / "no_ema", wanted), wanted)
    shift = {"^opt_state/1/": "opt_state/0/"}
    report = reshard.convert(source, tmp_path / "adam", drop=["^opt_state/[02]"], rename=shift)
    assert not [w for w in report.warnings if "becomes a dict" in w]
    wanted = STATE.replace(opt_state=(adamw,))
    same(stock(tmp_path / "adam", wanted), wanted)


GAP = "the list 'params/layers' becomes a dict with the keys 9, 10, 11; to stay a list, it needs the positions 0 to 2"


def test_a_list_with_a_gap_becomes_a_dict_and_the_plan_says_so(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    select, target = [f"^params/{LAST_THREE}"], tmp_path / "3"
    assert GAP in reshard.plan(source, target, select=select).warnings
    words = [str(source), str(target), "--select", select[0]]
    assert run(["plan", *words]) == 0
    assert GAP in " ".join(capsys.readouterr().out.split())
    assert run(["plan", *words, "--json"]) == 0
    assert GAP in json.loads(capsys.readouterr().out)["warnings"]
    assert run(["convert", *words, "--json"]) == 0
    assert GAP in json.loads(capsys.readouterr().out)["warnings"]
    layers = STATE.params["layers"]
    wanted = {"params": {"layers": {str(i): layers[i] for i in (9, 10, 11)}}}
    same(stock(target, wanted), wanted)
