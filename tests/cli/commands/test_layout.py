"""``reshard layout``: the layout of a checkpoint, a preview of another, and which argument is the layout file."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from reshard.cli.app import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``ckpt``, of which ``count`` has no layout, and ``serving.yaml``."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def put(value: np.ndarray, *axes: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

    tree = {
        "kernel": put(np.ones((16, 8), np.float32), "data", "model"),
        "scale": put(np.ones(8, np.float32)),
        "count": np.int32(1),
    }
    reshard.save(tmp_path / "ckpt", tree)
    file = "mesh: {axes: [model], shape: [8]}\nrules: [{match: kernel, axes: [null, model]}]\n"
    (tmp_path / "serving.yaml").write_text(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("at_work")
def test_the_checkpoint_alone_is_drawn_as_it_is(capsys: Capture) -> None:
    assert run(["layout", "ckpt"]) == 0
    assert (
        capsys.readouterr().out
        == """\
mesh data=4, model=2
8 devices: model across, data down
┌────────────────────┬────────────────────┐
│         0          │         1          │
├────────────────────┼────────────────────┤
│         2          │         3          │
├────────────────────┼────────────────────┤
│         4          │         5          │
├────────────────────┼────────────────────┤
│         6          │         7          │
└────────────────────┴────────────────────┘

16×8, 1 tensor, 512 B
kernel
[data, model]
8 of 4×4, 64 B each
┌────────────────────┬────────────────────┐
│         0          │         1          │
├────────────────────┼────────────────────┤
│         2          │         3          │
├────────────────────┼────────────────────┤
│         4          │         5          │
├────────────────────┼────────────────────┤
│         6          │         7          │
└────────────────────┴────────────────────┘

whole on every device: 1 tensor, 32 B
scale

no layout recorded: 1 tensor, 4 B
count
"""
    )
    assert run(["layout", "ckpt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] is None
    kernel = next(t for t in found["tensors"] if t["source"] == "kernel")
    assert kernel["source_axes"] == kernel["target_axes"] == ["data", "model"]
    assert (
        kernel["source_mesh"]
        == kernel["target_mesh"]
        == {"axes": ["data", "model"], "shape": [4, 2]}
    )


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize(
    "words", ["serving.yaml ckpt", "ckpt --layout serving.yaml", "--layout serving.yaml ckpt"]
)
def test_the_file_comes_first_or_behind_its_option(words: str, capsys: Capture) -> None:
    assert run(["layout", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "source mesh data=4, model=2" in out
    assert "target [null, model]" in out
    assert run(["layout", *words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["source"]) == ("serving.yaml", "ckpt")
    assert {tuple(t["target_shards"]) for t in found["tensors"]} == {(1, 8), (1,), ()}


@pytest.mark.usefixtures("at_work")
def test_a_mesh_alone_shows_the_same_axes_over_it(capsys: Capture) -> None:
    assert run(["layout", "ckpt", "--mesh", "data=2,model=4"]) == 0
    out = capsys.readouterr().out
    assert "source mesh data=4, model=2" in out
    assert "target mesh data=2, model=4" in out
    assert run(["layout", "ckpt", "--mesh", "model=8", "--missing-axes", "replicate"]) == 0
    assert "warning: the mesh (model=8) has no axis 'data'" in capsys.readouterr().out


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize("how", [[], ["--json"]])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("serving.yaml", "'serving.yaml' is a file, and no checkpoint is named; write reshard layout SRC --layout"),
        ("ckpt serving.yaml", "'ckpt' is a folder, but a layout file comes first; write reshard layout serving.yaml ckpt"),
        ("serving.yaml ckpt --layout serving.yaml", "both 'serving.yaml' and --layout 'serving.yaml' name a layout"),
        ("a b c d", "'c d' is one word too many; expected reshard layout [FILE] SRC"),
        ("ckpt --starter --layout serving.yaml", "--starter makes a layout file, but 'serving.yaml' is given"),
        ("serving.yaml ckpt --starter", "--starter makes a layout file, but 'serving.yaml' is given"),
        ("", "Missing argument '[FILE] SRC'"),
    ],
)  # fmt: skip
def test_other_words_are_usage_errors(
    words: str, text: str, how: list[str], capsys: Capture
) -> None:
    assert run(["layout", *words.split(), *how]) == 2
    out, err = capsys.readouterr()
    assert text in (json.loads(out)["error"]["message"] if how else err)


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("missing", "missing does not exist: expected the directory of a checkpoint; check the path"),
        ("missing.yaml ckpt", "layout file 'missing.yaml' cannot be read: No such file or directory"),
        ("ckpt --mesh model=8", "(--missing-axes replicate)"),
    ],
)  # fmt: skip
def test_what_is_refused(words: str, text: str, capsys: Capture) -> None:
    assert run(["layout", *words.split()]) == 1
    assert text in capsys.readouterr().err
