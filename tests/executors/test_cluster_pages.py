"""The pages about clusters run as written: on a Ray cluster of this host, and with an ``sbatch`` that runs jobs at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.geometry.sizes import parse_bytes
from tests.checkpoint_files import files_without_times
from tests.docs.page import code_of, steps
from tests.docs.run_page import DOCS, run_page, run_steps
from tests.executors.ray_head import ray_head

RAY, SLURM = (DOCS / "how-to" / "many-hosts" / name for name in ("ray.md", "slurm.md"))
LAYOUT = """\
mesh: {axes: [data, model], shape: [2, 4]}
rules: [{match: kernel, axes: [null, model]}]
unmatched: replicate
"""
SBATCH = f"""\
#!{sys.executable}
# Runs a job at once, each task twice as after a requeue, and refuses what Slurm refuses.
import os, re, subprocess, sys
from pathlib import Path

*options, script = sys.argv[1:]
text = Path(script).read_text()
assert text.startswith("#!"), "This does not look like a batch script"
needed = [o.partition(":")[2] for o in options if o.startswith("--dependency=afterok:")]
assert all(Path(f"job-{{n}}-done").exists() for n in needed), "DependencyNeverSatisfied"
job = str(1 + len(list(Path().glob("job-*-done"))))
found = re.search(r"^#SBATCH --array=(\\d+)-(\\d+)$", text, re.MULTILINE)
tasks = range(int(found[1]), int(found[2]) + 1) if found else [None]
for task in tasks:
    array = {{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": str(len(tasks))}} if found else {{}}
    for _ in range(2 if task == 3 else 1):
        subprocess.run(["bash", script], env={{**os.environ, **array}}, check=True, stdout=sys.stderr)
Path(f"job-{{job}}-done").touch()
print(job if "--parsable" in options else f"Submitted batch job {{job}}")
"""


def save(folder: Path) -> Path:
    """The checkpoint and the layout file that the pages name."""
    rng = np.random.default_rng(5)
    tree = {f"layer_{n}": {"kernel": rng.normal(size=(64, 64)).astype("f4")} for n in range(18)}
    layout = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    layout["kernel"] = ("data", "model")
    reshard.save(folder / "run" / "1000", tree, layout, compression="zstd")
    (folder / "serving.yaml").write_text(LAYOUT)
    return folder / "run" / "1000"


def assert_as_on_one_host(source: Path, *targets: Path) -> None:
    alone = source.parents[1] / "alone"
    reshard.convert(source, alone, layout=source.parents[1] / "serving.yaml")
    for target in targets:
        assert files_without_times(target) == files_without_times(alone)


@pytest.mark.xdist_group("ray")
def test_the_page_of_ray_runs(tmp_path: Path) -> None:
    source = save(tmp_path)
    with ray_head() as address:
        text = RAY.read_text("utf-8").replace("10.0.0.1:6379", address)
        todo = [step for step in steps(text) if not step.text.startswith("pip install")]
        assert [step.kind for step in todo] == ["command", "python"]
        run_steps(RAY, todo, tmp_path)
    assert RAY.name == "ray.md"
    assert_as_on_one_host(source, tmp_path / "served/1000", tmp_path / "eval/1000")


def test_the_page_of_slurm_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path)
    program = tmp_path / "programs" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    run_page(SLURM, tmp_path)
    assert SLURM.name == "slurm.md"
    assert_as_on_one_host(source, tmp_path / "served/1000", tmp_path / "eval/1000")
    assert not (tmp_path / "early" / "1000").exists()


@pytest.mark.parametrize("script", code_of(SLURM, "bash"), ids=["parts", "commit"])
def test_the_scripts_are_those_of_bash_and_have_the_memory(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    text = SLURM.read_text("utf-8")
    (allowed,) = re.findall(r"--max-memory (\S+)", text)
    (given,) = re.findall(r"^#SBATCH --mem=(\d+)M$", script, re.MULTILINE)
    assert int(given) << 20 >= parse_bytes(allowed) + (128 << 20)
    (cores,) = re.findall(r"^#SBATCH --cpus-per-task=(\d+)$", script, re.MULTILINE)
    assert re.findall(r"--workers (\d+)", text) == [cores]
