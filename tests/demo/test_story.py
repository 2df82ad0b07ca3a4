"""The demo runs to its end, and its last step would notice a changed bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reshard.demo import run_demo, story
from reshard.demo.serving_job import compare
from reshard.errors import ReshardError, TargetExistsError

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("demo")
"""One worker runs them all, since they share one finished demo."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished demo: its directory and what it printed."""
    directory = tmp_path_factory.mktemp("demo") / "kept"
    code = f"from pathlib import Path\nfrom reshard.demo import run_demo\nrun_demo(Path({str(directory)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory, done.stdout


def test_every_command_is_echoed_as_a_person_would_type_it(demo: tuple[Path, str]) -> None:
    _, said = demo
    typed = [line for line in said.splitlines() if line.startswith("$ ")]
    assert typed == [
        "$ python -m reshard.demo.training_job train",
        "$ reshard inspect train/1000",
        "$ cat serving.yaml",
        "$ reshard layout serving.yaml train/1000",
        "$ reshard plan train/1000 served/1000 --layout serving.yaml",
        "$ reshard convert train/1000 served/1000 --layout serving.yaml",
        "$ reshard verify train/1000 served/1000",
        "$ python -m reshard.demo.serving_job train served",
    ]


def test_both_shardings_are_drawn_and_every_bit_is_compared(demo: tuple[Path, str]) -> None:
    _, said = demo
    assert said.count("CPU 7") == 2
    assert "stock Orbax restored 48 arrays on 8 devices; every bit is as training saved it" in said


def test_a_kept_directory_is_not_overwritten(demo: tuple[Path, str]) -> None:
    directory, _ = demo
    before = sorted(p.name for p in directory.iterdir())
    with pytest.raises(TargetExistsError, match="train already exists; remove it or name another"):
        run_demo(directory)
    assert (
        sorted(p.name for p in directory.iterdir()) == before == ["served", "serving.yaml", "train"]
    )


def test_the_last_step_notices_the_wrong_mesh(demo: tuple[Path, str]) -> None:
    directory, _ = demo
    command = [sys.executable, "-m", "reshard.demo.serving_job", "train", "train"]
    done = subprocess.run(
        command,
        cwd=directory,
        env=story._environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "48 arrays are not on the mesh of 8" in done.stderr


def test_the_comparison_notices_one_bit_one_dtype_one_key_and_one_leaf() -> None:
    import jax
    import numpy as np

    zeros, negative = np.zeros(3, np.float32), np.array([0.0, -0.0, 0.0], np.float32)
    tree = {"a": zeros, "rng": jax.random.key(0)}
    assert compare(tree, {"a": zeros.copy(), "rng": jax.random.key(0)}) == []
    assert compare(tree, {**tree, "a": negative}) == ["['a']: its bits changed"]
    assert compare(tree, {**tree, "rng": jax.random.key(1)}) == ["['rng']: its bits changed"]
    assert compare(tree, {**tree, "a": zeros.astype(np.int32)}) == [
        "['a']: float32[3] became int32[3]"
    ]
    assert compare(tree, {"a": zeros}) == ["the trees differ: 2 leaves became 1"]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "NEEDED", {"optax_that_is_not_there.x": "optax"})
    with pytest.raises(
        ReshardError, match=r"not installed: optax; run pip install '.\[demo\]' in a checkout"
    ):
        run_demo()


def test_a_failing_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = story.StoryStep("Fails", "python", ("-c", "raise SystemExit(5)"))
    monkeypatch.setattr(story, "STEPS", (step,))
    with pytest.raises(ReshardError, match=r"SystemExit.*but it ended with exit code 5"):
        run_demo(tmp_path / "kept")
