"""What print shows of what calls return: a few readable lines, however many tensors there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import reshard

LAYERS = 40


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each call returns, of a checkpoint of 41 tensors."""
    folder = tmp_path_factory.mktemp("shown")
    a, b, c = (str(folder / name) for name in "abc")
    tree = {f"layer{i}": np.full((8, 4), i, np.float32) for i in range(LAYERS)} | {
        "\x1b[2J": np.ones(3)
    }
    reshard.save(a, tree)
    layout = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "layer", "axes": ["x"]}]}
    restored: list[Any] = []
    reshard.restore(a, cast={"layer0$": "bfloat16"}, report=restored.append)
    targets = [reshard.Target(f"{a}{n}", layout=layout) for n in "12"]
    return {
        "inspect": reshard.inspect(a),
        "preview_layout": reshard.preview_layout(a, layout),
        "plan": reshard.plan(
            a, b, layout=layout, cast={"layer0$": "int8"}, rename={"layer0": "first"}
        ),
        "convert": reshard.convert(a, b, layout=layout, rename={"layer0": "first"}),
        "again": reshard.convert(a, b, layout=layout, rename={"layer0": "first"}),
        "plan_all": reshard.plan_all(a, targets),
        "convert_all": reshard.convert_all(a, targets),
        "verify": reshard.verify(a, b),
        "verify one": reshard.verify(a),
        "different": _different(tree, c, a),
        "fingerprint": reshard.fingerprint(a, overwrite=True),
        "restore": restored[0],
    }


def _different(tree: dict[str, Any], c: str, a: str) -> Any:
    reshard.save(c, tree | {"layer7": np.zeros((8, 4), np.float32)})
    return reshard.verify(a, c)


def small(found: Any) -> Iterator[Any]:
    """The records in what a call returns."""
    for name in ("tensors", "files", "reports", "plans"):
        inner = getattr(found, name, ())
        if not isinstance(inner, int):
            yield from inner.values() if isinstance(inner, dict) else inner


CALLS = (
    "inspect", "preview_layout", "plan", "convert", "again", "plan_all", "convert_all", "verify", "verify one",
    "different", "fingerprint", "restore",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_few_lines_that_begin_with_the_kind(returned: dict[str, Any], call: str) -> None:
    found = returned[call]
    text = repr(found)
    assert str(found) == text
    assert text.startswith(f"{type(found).__name__}(")
    assert len(text.splitlines()) <= 6
    assert max(map(len, text.splitlines())) < 400
    assert "\x1b" not in text
    for record in small(found):
        line = repr(record)
        assert len(line.splitlines()) <= 6
        assert len(line) < 500


def test_what_they_say(returned: dict[str, Any]) -> None:
    info = returned["inspect"]
    assert repr(info).splitlines() == [
        f"CheckpointInfo({info.uri!r}: orbax v0, 41 tensors, 5.02 KiB)",
        "  TensorInfo('\\x1b[2J': float64 [3])",
        "  TensorInfo('layer0': float32 [8, 4])",
        "  TensorInfo('layer1': float32 [8, 4])",
        "  … and 38 more",
    ]
    plan = returned["plan"]
    assert f"{plan.source!r} → {plan.target!r}: 41 tensors in " in repr(plan)
    assert (
        "PlannedTensor('layer0' → 'first': float32 → int8 [8, 4] not recorded → [null, null], "
        in repr(plan)
    )
    report = returned["convert"]
    assert repr(report).startswith(
        f"ConversionReport({report.source!r} → {report.target!r}: 41 tensors, 5.02 KiB, in"
    )
    assert "TensorReport('layer0 → first': float32 [8, 4], " in repr(report)
    assert "41 tensors, 5.02 KiB, finished before)" in repr(returned["again"])
    assert "of buffers" in repr(plan.plan)
    assert repr(returned["preview_layout"]).startswith(
        "LayoutPreview(41 tensors, 2.52 KiB on each device)"
    )
    assert ": 41 tensors, " in repr(returned["verify"])
    assert repr(returned["verify"]).endswith(", equal)")
    assert "against its own record: 41 tensors, " in repr(returned["verify one"])
    assert ", 1 differ)\n  TensorVerdict('layer7': different, " in repr(returned["different"])
    assert ": 2 targets, read " in repr(returned["convert_all"])
    assert ": 2 targets, reads " in repr(returned["plan_all"])
    assert "RestoreReport(41 tensors, read " in repr(returned["restore"])
    assert "\n  cast 'layer0': CastStats(overflows=0" in repr(returned["restore"])
    assert "\n  written: '" in repr(returned["fingerprint"])
