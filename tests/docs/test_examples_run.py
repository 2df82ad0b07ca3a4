"""Every example of every command's help, and of docs, on the checkpoints of real training jobs.

The paths are those of the examples: ``ckpt`` is the folder of a CheckpointManager with the steps 1000 and
2000 of a TrainState, whose optimizer has integer counters. Examples with ``--item`` run where each step has
the items model and ema. How-to pages, tutorials, README and the pages about the service have tests of their own.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training import train_state
from safetensors.numpy import save_file

import reshard
from tests.delta_layout import bytes_of, write_full
from tests.docs.examples import DOCS, HELP, JOBS
from tests.docs.serving import serving
from tests.docs.walk import mesh, shell
from tests.emulators.buckets import Bucket
from tests.executors.ray_head import ray_head
from tests.orbax_trees import put
from tests.server.faces.viewing import running
from tests.server.forked import Forked
from tests.server.jobs.hosts import wait_until
from tests.server.live import environment

ROOT = Path(__file__).parents[2]
SERVING = """\
mesh: {axes: [data, model], shape: [2, 4]}
rules:
  - {match: "embed", axes: [model, null]}
  - {match: "kernel", axes: [null, model]}
"""
TO_HF = """\
drop: ['^opt_state/', '^step$']
map:
  - {from: params/embed/embedding, to: embed.weight}
  - {from: 'params/layers/{n}/kernel', to: 'layers.{n}.weight', shape: i o -> o i}
  - {from: 'params/layers/{n}/bias', to: 'layers.{n}.bias'}
"""
OF_OTHER_HOSTS = {"rsync": '#!/bin/sh\ntest -d "$2"\n'}
"""Programs that would reach another machine, and what stands for them."""

pytestmark = pytest.mark.xdist_group("examples")


ON_CHECKPOINTS = [
    line
    for command, lines in HELP.items()
    for line in lines
    if command
    not in (
        "serve",
        "work",
        "jobs",
        "rules",
        "recipes",
        "demo",
        "doctor",
        "clean",
        "commit",
        "part",
    )
    and not any(option in line for option in ("--server", "--ray", "--part", " hf://"))
]


def state(step: int) -> train_state.TrainState:
    """A training state on a mesh of data and model, after so many steps: matrices are split by model."""
    rng = np.random.default_rng(step)

    def kernel(*shape: int) -> jax.Array:
        return put(rng.normal(size=shape).astype(np.float32), None, "model", on=mesh(4, 2))

    layers = [{"kernel": kernel(64, 128), "bias": jnp.zeros(128)} for _ in range(12)]
    params = {"embed": {"embedding": kernel(256, 64)}, "layers": layers}
    made = train_state.TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))
    adam, *rest = made.opt_state
    return made.replace(
        step=jnp.int32(step), opt_state=(adam._replace(count=jnp.int32(step)), *rest)
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``single/ckpt`` and ``items/ckpt``; beside the first, what earlier examples have made of it."""
    made = tmp_path_factory.mktemp("examples")
    for kind in ("single", "items"):
        with ocp.CheckpointManager(made / kind / "ckpt") as manager:
            for step in (1000, 2000):
                tree = state(step)
                save = ocp.args.StandardSave
                args: Any = save(tree)
                if kind == "items":
                    args = ocp.args.Composite(model=save(tree), ema=save(tree.params))
                manager.save(step, args=args)
            manager.wait_until_finished()
        (made / kind / "serving.yaml").write_text(SERVING)
    trained = made / "single" / "ckpt" / "1000"
    reshard.convert(trained, made / "served", layout=made / "single" / "serving.yaml")
    rules: dict[str, Any] = {"select": ["^params/"], "rename": {"^params/": "model/"}}
    reshard.convert(trained, made / "others", **rules)
    (made / "single" / "to_hf.yaml").write_text(TO_HF)
    (made / "single" / "serve.yaml").write_text(f"mesh: {{model: 4}}\n{TO_HF}")
    reshard.convert(trained, made / "hf", map=made / "single" / "to_hf.yaml", to="safetensors")
    pair = {"w": np.ones((128, 8), ml_dtypes.float8_e4m3fn), "w_scale_inv": np.ones((1, 1), "f4")}
    for kind in ("single", "items"):
        (made / kind / "fp8").mkdir()
        save_file(pair, made / kind / "fp8" / "model.safetensors")
    steps = [made / "single" / "ckpt" / str(number) for number in (1000, 2000, 1000)]
    for number in (1, 2):
        version = made / "published" / f"weight_v{number:06d}"
        reshard.delta(*steps[number - 1 : number + 1], version, map=made / "single" / "to_hf.yaml")
    return made


def place(runs: Path, folder: Path, line: str) -> Path:
    """Where an example is typed: the targets are there for the commands that only look at them."""
    shutil.copytree(runs / ("items" if "--item" in line else "single"), folder)
    keys = folder / "release.pem", folder / "release.pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", keys[0]], check=True)
    subprocess.run(["openssl", "pkey", "-in", keys[0], "-pubout", "-out", keys[1]], check=True)
    if line.split()[1] in ("verify", "diff", "identify", "sign"):
        shutil.copytree(runs / "served", folder / "served")
        shutil.copytree(runs / "others", folder / "others")
    if line.split()[1] in ("verify", "diff", "identify", "sign", "delta", "apply"):
        shutil.copytree(runs / "hf", folder / "hf")
    if line.split()[1] in ("verify", "apply"):
        shutil.copytree(runs / "published", folder / "published")
    if "--identity" in line or ("verify" in line and "--key" in line):
        reshard.sign(folder / "served", keys[0])
        shutil.copytree(folder / "served", folder / "identities" / "served")
    (folder / "programs").mkdir()
    for name, text in OF_OTHER_HOSTS.items():
        (folder / "programs" / name).write_text(text)
        (folder / "programs" / name).chmod(0o755)
    return folder


def run(folder: Path, line: str) -> None:
    """Types a line; it must end well and do what its words say."""
    if line.startswith("reshard view"):
        check_view(folder, line)
        return
    done = shell(folder, f"PATH=$PWD/programs:$PATH; {line}")
    # Two steps of a training run differ, which diff says by its code.
    codes = {0, 3} if line.startswith("reshard diff") and "ckpt/2000" in line else {0}
    assert done.code in codes, f"{line}\n{done.out}{done.errors}"
    assert done.out.strip() or ">" in line, line
    if "--dry-run" in line:
        assert not targets_in(folder), line
    elif line.startswith("reshard convert"):
        check_made(folder, line)


def check_view(folder: Path, line: str) -> None:
    """A client of a hub finds the files at the address that it prints, until it is stopped."""
    (folder / "token").write_text("secret")
    words = shlex.split(re.sub(r"--host \S+", "", line))[2:]
    with running(folder, *words) as view:
        export, download, *_ = view.said().splitlines()
        endpoint = export.split()[1].partition("=")[2]
        asked = f"{endpoint}/api/models/{download.split()[-1]}"
        found = httpx.get(asked, headers={"Authorization": "Bearer secret"}).json()
        assert "model.safetensors" in [one["rfilename"] for one in found["siblings"]]
        assert view.end() == 0


def check_made(folder: Path, line: str) -> None:
    """Each target is there and agrees with its record; what is cast, and only that, has the dtype asked for."""
    targets = targets_in(folder)
    assert targets, line
    sources = [t.spec.dtype for t in reshard.inspect(folder / "ckpt" / "1000").tensors.values()]
    assert {"float32", "int32"} <= set(sources)
    for target in targets:
        assert reshard.verify(target).differences == 0
        stored = {t.spec.dtype for t in reshard.inspect(target).tensors.values()}
        assert ("bfloat16" in stored) == ("bfloat16" in line)
        assert stored <= {*sources, "bfloat16"}
        if "embed=float32" not in line and "float=bfloat16" in line:
            assert "float32" not in stored


def targets_in(folder: Path) -> list[Path]:
    return [f for f in folder.iterdir() if f.is_dir() and f.name not in ("ckpt", "fp8", "programs")]


@pytest.mark.parametrize("line", ON_CHECKPOINTS)
def test_the_example_of_the_help_works(
    line: str, runs: Path, gcs_bucket: Bucket, tmp_path: Path
) -> None:
    folder = place(runs, tmp_path / "typed", line)
    if "gs://bucket/run/1000" in line:
        reshard.convert(folder / "ckpt" / "1000", f"{gcs_bucket.url}/run/1000")
    run(folder, line.replace("gs://bucket", gcs_bucket.url))


@pytest.mark.parametrize("line", HELP["doctor"])
def test_the_example_of_doctor_works(
    line: str, gcs_bucket: Bucket, s3_bucket: Bucket, tmp_path: Path
) -> None:
    (scheme,) = re.findall(r"(\w+)://bucket", line)
    bucket = {"gs": gcs_bucket, "s3": s3_bucket}[scheme]
    typed = line.replace(f"{scheme}://bucket", bucket.url)
    done = shell(tmp_path, typed.replace("AWS_ENDPOINT_URL=https://minio.example ", ""))
    assert done.code == 0, done.said
    assert "--json" in line or "fine: all that was tried holds" in done.out


@pytest.mark.parametrize("line", HELP["clean"])
def test_the_example_of_clean_works(line: str, gcs_bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "ckpt/.served.reshard-partial/checkpoint").mkdir(parents=True)
    gcs_bucket.store().put("run/.1000.reshard-partial/lease", b"{}")
    weights = {"a": np.arange(4, dtype="f4")}
    for number in range(4):
        version = tmp_path / "published" / f"weight_v{number:06d}"
        write_full(version, bytes_of(weights), weights)
    done = shell(tmp_path, line.replace("gs://bucket", gcs_bucket.url))
    assert done.code == 0, done.said
    assert ("would remove: " if "--dry-run" in line else "removed: ") in done.out


def test_the_examples_of_parts_work(runs: Path, tmp_path: Path) -> None:
    """Those of commit make a checkpoint, one after the other; so do those of part; that of convert does one part."""
    *parts, commit = HELP["commit"]
    (alone,) = (line for line in HELP["convert"] if "--part " in line)
    folder = place(runs, tmp_path / "typed", commit)
    for line in parts:
        done = shell(folder, line)
        assert done.code == 0, done.said
        assert not (folder / "served").exists()
    run(folder, commit)
    check_made(folder, commit)
    folder = place(runs, tmp_path / "joined", commit)
    for line in (*HELP["part"], commit):
        done = shell(folder, line)
        assert done.code == 0, done.said
    check_made(folder, commit)
    folder = place(runs, tmp_path / "alone", alone)
    assert "part 3/16 of ckpt/1000" in shell(folder, alone).out


def test_the_example_of_a_ray_cluster_works(runs: Path, tmp_path: Path) -> None:
    (line,) = (line for line in HELP["convert"] if "--ray" in line)
    with ray_head() as address:
        run(
            place(runs, tmp_path / "typed", line),
            line.replace("10.0.0.1:6379", address),
        )


@pytest.mark.parametrize("page", DOCS)
def test_the_examples_of_the_page_work(page: str, runs: Path, tmp_path: Path) -> None:
    folder = place(runs, tmp_path / "typed", DOCS[page][0])
    for line in DOCS[page]:
        if line.startswith("reshard convert"):
            for target in targets_in(folder):
                shutil.rmtree(target)
        run(folder, line)


def check_jobs(folder: Path, url: str) -> None:
    """The examples of ``jobs`` and of its commands, on a server that has converted once."""
    (export, *examples) = HELP["jobs"]
    prelude = export.replace("http://checkpoints:8080", url)
    (one,) = json.loads(shell(folder, f"{prelude}; reshard jobs list --json").out)["conversions"]
    for line in [*examples, *(line for lines in JOBS.values() for line in lines)]:
        typed = line.replace("019d7c3a5b1e9f2c6d8e4a7b0c31", one["id"])
        done = shell(folder, f"{prelude}; {typed.replace('http://checkpoints:8080', url)}")
        # It has succeeded, so that there is nothing to cancel or to do again.
        ended = " cancel " in line or " retry " in line
        assert done.code == (1 if ended else 0), done.said
        assert f"conversion {one['id']} " in done.errors if ended else done.out.strip()


def test_every_command_has_examples_and_they_are_those_that_are_typed() -> None:
    assert all(HELP.values())
    assert {line.split()[1] for line in ON_CHECKPOINTS} == set(HELP) - {
        "serve",
        "work",
        "jobs",
        "rules",
        "recipes",
        "demo",
        "doctor",
        "clean",
        "commit",
        "part",
    }
    assert any("--cast float=bfloat16" in line for line in HELP["convert"])
    assert not any(".=bfloat16" in line for lines in HELP.values() for line in lines)
    assert "layout-files.md" in DOCS


def test_pruned_layers_of_the_docs_are_a_list(runs: Path, tmp_path: Path) -> None:
    (line,) = (line for line in DOCS["layout-files.md"] if "pruned" in line)
    shutil.copytree(runs / "single", tmp_path / "typed")
    assert shell(tmp_path / "typed", line).code == 0
    found = reshard.restore(tmp_path / "typed" / "pruned")["params"]["layers"]
    assert isinstance(found, list)
    kernels = [np.asarray(layer["kernel"]) for layer in state(1000).params["layers"][9:]]
    np.testing.assert_array_equal([layer["kernel"] for layer in found], kernels)


def test_the_examples_of_a_server_work(runs: Path, tmp_path: Path) -> None:
    """A token is made, a server started with it, and a conversion asked of it, as help shows them."""
    by_root, make_token, by_settings, migrate = HELP["serve"]
    asked = [
        next(line for line in HELP[command] if "--server" in line)
        for command in ("convert", "plan", "inspect", "verify")
    ]
    data = tmp_path / "srv"
    shutil.copytree(runs / "single" / "ckpt", data / "run")
    (tmp_path / "serving.yaml").write_text(SERVING)
    made = shell(tmp_path, make_token)
    assert made.code == 0, made.said
    (tmp_path / "token").write_text(made.errors.split()[-1])
    settings = (
        f'tokens_file = "tokens.toml"\nstate = "{tmp_path}/state"\n[roots]\ndata = "{data}"\n'
    )
    (tmp_path / "server.toml").write_text(settings)
    migrated = shell(tmp_path, migrate)
    assert "did the migrations 0001" in migrated.said, migrated.said
    with serving(by_settings.split()[1:], tmp_path, tmp_path / "log") as url:
        for line in asked:
            named = line.replace("served --layout", "other --layout") if "plan" in line else line
            typed = f"export RESHARD_TOKEN=$(cat token); {named}"
            done = shell(tmp_path, typed.replace("http://checkpoints:8080", url))
            assert done.code == 0, done.said
        check_jobs(tmp_path, url)
    (work,) = HELP["work"]
    log = tmp_path / "log3"
    log.touch()
    working = Forked(work.split(), environment(), tmp_path, log, log)
    wait_until(lambda: "reshard works: 2 at once" in log.read_text(), log.read_text)
    working.terminate()
    assert working.wait(60) == 0, log.read_text()
    assert reshard.verify(data / "run" / "1000", data / "served").differences == 0
    words = by_root.replace("/srv/checkpoints", str(data)).split()[1:]
    with serving([*words, "--state", str(tmp_path / "other")], tmp_path, tmp_path / "log2") as url:
        assert url.startswith("http://127.0.0.1:")
