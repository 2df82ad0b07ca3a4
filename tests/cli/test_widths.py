"""Every command on real checkpoints with long names, at four widths: names are whole, and nothing else is too wide."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.cells import cell_len

import reshard
from reshard.cli.app import run

WIDTHS = (60, 80, 120, 200)
LONG = "decoder/layers/self_attention/multi_head_projection"
LAYOUT = (
    "mesh: {axes: [model], shape: [8]}\n"
    "rules: [{match: kernel, axes: [null, model]}]\n"
    "partitions: [{match: table, fixed_shards: 3}]\n"
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` and ``b``, which differ, ``c`` without a tensor of ``a``, and ``damaged``."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def put(value: np.ndarray, *axes: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

    kernel = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    tree = {
        f"{LONG}/{name}/layer_{i}/kernel": put(kernel + i, "data", "model")
        for i in range(3)
        for name in (
            "query",
            "a_very_long_name_of_one_part_that_has_no_slash_to_break_at",
            "日本語" * 12,
        )
    }
    tree |= {"table": put(np.ones((10, 4), np.float32)), "step": np.int32(3)}
    place = tmp_path_factory.mktemp("widths")
    reshard.save(place / "a", tree)
    reshard.save(place / "b", {k: v + 1 if "layer_1" in k else v for k, v in tree.items()})
    reshard.save(
        place / "c", {k: v for k, v in tree.items() if "query" not in k} | {"step": np.zeros(2)}
    )
    reshard.save(place / "damaged", tree)
    chunk = next(
        p for p in sorted((place / "damaged").rglob("*")) if p.is_file() and "/c" in str(p)
    )
    chunk.write_bytes(b"\0" * 16 + chunk.read_bytes()[16:])
    (place / "damaged" / "_sharding").unlink()
    (place / "l.yaml").write_text(LAYOUT)
    return place


COMMANDS = (
    ("inspect {0}/a", 0),
    ("plan {0}/a --layout {0}/l.yaml", 0),
    ("plan {0}/a --layout {0}/l.yaml --shares --cast kernel$=bfloat16 --rename ^decoder/=model/", 0),
    ("layout {0}/a", 0),
    ("layout {0}/a --layout {0}/l.yaml", 0),
    ("convert {0}/a {0}/out --layout {0}/l.yaml --cast kernel$=bfloat16 --overwrite", 0),
    ("convert {0}/a --target {0}/l.yaml={0}/x --target model=2,data=1={0}/y --overwrite", 0),
    ("verify {0}/a", 0),
    ("verify {0}/a {0}/b", 3),
    ("verify {0}/a {0}/c", 3),
    ("verify {0}/damaged", 3),
    ("diff {0}/a {0}/b", 3),
    ("diff {0}/a {0}/c", 3),
    ("fingerprint {0}/a --overwrite", 0),
    ("recipes", 0),
)  # fmt: skip


def is_wide_name(line: str, width: int) -> bool:
    """A line that is wider than the screen, since it is one name or path."""
    return cell_len(line) > width and " " not in line.strip().removeprefix("→ ")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("command", "code"), COMMANDS)
def test_names_are_whole_and_all_else_fits(
    folder: Path, command: str, code: int, width: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(command.format(folder).split()) == code
    out = capsys.readouterr().out
    wide = [line for line in out.splitlines() if cell_len(line) > width]
    assert wide == [line for line in wide if is_wide_name(line, width)], out
    assert "decoder/" not in out or f"{LONG}/" in out
    assert not re.search("decod…|lay…|proj…|…[a-z]*kernel", out)


def test_a_pipe_gets_a_line_for_each_row(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    name = f"{LONG}/{'日本語' * 12}/layer_{{0…2}}/kernel"
    for command in ("inspect {0}/a", "plan {0}/a --layout {0}/l.yaml", "layout {0}/a"):
        assert run(command.format(folder).split()) == 0
        (row,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
        assert "64×32" in row or command.startswith("layout")


def test_all_shows_whole_names_at_any_width(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command in ("inspect {0}/a", "plan {0}/a --layout {0}/l.yaml", "diff {0}/a {0}/b",
                    "verify {0}/a {0}/b", "fingerprint {0}/a --overwrite"):  # fmt: skip
        run([*command.format(folder).split(), "--all"])
        out = capsys.readouterr().out
        name = f"{LONG}/{'日本語' * 12}/layer_1/kernel"
        (row,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
        assert "…" not in row
        assert len(row.split("  ")) > 1
        assert "too narrow for" not in out
