"""The init container of a model server, by hand and by KServe: its fields, and what it does as the user that it runs as."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import numpy as np
import pytest
import yaml

import reshard
from reshard.geometry.sizes import parse_bytes
from tests.checkpoint_files import files_without_times
from tests.deploy.deployed import USER, Installation, Place, as_user
from tests.deploy.documents import DEPLOY, MIB, ROOT, parse_size, pod
from tests.docs.page import code_of, is_as_shown, steps
from tests.emulators.buckets import Bucket

pytestmark = pytest.mark.xdist_group("deploy")
KSERVE = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "custom" / "kserve.yaml").read_text())]
PAGE = ROOT / "docs" / "how-to" / "serve-from-a-training-bucket.md"
STORAGE = KSERVE[0]["spec"]["container"]
(CONVERT,) = pod("Deployment", "llama")["initContainers"]

FORMAT = {
    "type": "object", "additionalProperties": False, "minProperties": 1, "maxProperties": 1,
    "properties": {"prefix": {"type": "string"}, "regex": {"type": "string"}},
}  # fmt: skip
STORAGE_CONTAINER = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "serving.kserve.io/v1alpha1"},
        "kind": {"const": "ClusterStorageContainer"},
        "metadata": {"type": "object", "required": ["name"], "not": {"required": ["namespace"]}},
        "disabled": {"type": "boolean"},
        "spec": {
            "type": "object",
            "required": ["container", "supportedUriFormats"],
            "additionalProperties": False,
            "properties": {
                "container": {"type": "object", "properties": {"name": {"const": "storage-initializer"}}},
                "supportedUriFormats": {"type": "array", "minItems": 1, "items": FORMAT},
            },
        },
    },
}  # fmt: skip
"""``pkg/apis/serving/v1alpha1/storage_container_types.go`` of KServe 0.15; the name is the one that its webhook looks for."""


def test_the_storage_container_fits_the_schemas() -> None:
    jsonschema.validate(KSERVE[0], STORAGE_CONTAINER)
    container = {**STORAGE, "args": ["llama3+gs://bucket/run", "/mnt/models"]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}  # fmt: skip
    kubernetes_validate.validate(made, "1.32.0", strict=True)
    wrong = {**KSERVE[0], "spec": {**KSERVE[0]["spec"], "supportedUriFormats": [{"prefx": "x"}]}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, STORAGE_CONTAINER)


def test_the_example_of_a_service_is_one_that_the_container_is_chosen_for() -> None:
    model = KSERVE[1]["spec"]["predictor"]["model"]
    prefixes = [one["prefix"] for one in KSERVE[0]["spec"]["supportedUriFormats"]]
    assert any(model["storageUri"].startswith(prefix) for prefix in prefixes)
    # KServe has containers of its own for these, and says of no container which it takes if two fit.
    assert not any(p.startswith(("gs://", "s3://", "hf://", "https://")) for p in prefixes)


def options(container: dict[str, Any]) -> dict[str, str]:
    """The options of a container, by name."""
    first, *words = container["command"]
    assert first == "reshard-init"
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("container", [CONVERT, STORAGE], ids=["by hand", "KServe"])
def test_the_memory_suffices_and_the_recipe_is_there(container: dict[str, Any]) -> None:
    words = options(container)
    limits = container["resources"]
    assert limits["limits"]["memory"] == limits["requests"]["memory"]
    assert parse_bytes(words["--max-memory"]) + 128 * MIB <= parse_size(limits["limits"]["memory"])
    assert limits["requests"]["cpu"] == words["--workers"]
    assert (Path(reshard.__file__).parent / "recipes" / f"{words['--map']}.yaml").is_file()


def test_the_pod_gives_both_containers_one_volume() -> None:
    spec = pod("Deployment", "llama")
    (server,) = spec["containers"]
    (mount,) = CONVERT["volumeMounts"]
    assert mount["mountPath"] == CONVERT["args"][-1]
    assert {**mount, "readOnly": True} in server["volumeMounts"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
    assert "emptyDir" in volume
    assert server["args"][1] == mount["mountPath"]
    for container in (CONVERT, server, STORAGE):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def start(command: Sequence[str], image: Installation) -> subprocess.CompletedProcess[str]:
    """A start of the container; nothing but the volume can be written to."""
    environment = {"PATH": f"{image.folder / 'bin'}:{os.environ['PATH']}", "HOME": "/nonexistent", "TMPDIR": "/nonexistent"}  # fmt: skip
    return subprocess.run(as_user(command), env=environment, cwd="/", capture_output=True, text=True, timeout=120)  # fmt: skip


def save(path: Path) -> None:
    reshard.save(path, {"kernel": np.arange(4096, dtype=np.float32).reshape(64, 64)})


def test_the_container_fills_its_volume_once(image: Installation, at: Place) -> None:
    source, target = at.at("/training/1000"), at.at(CONVERT["args"][-1])
    save(source)
    at.make_writable(CONVERT["args"][-1])
    command = [*command_of(CONVERT), str(source), str(target)]
    first = start(command, image)
    assert first.returncode == 0, first.stderr
    files = files_without_times(target)
    assert reshard.verify(source, target).differences == 0  # with the recorded cast
    again = start(command, image)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    assert files_without_times(target) == files
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert (
        target / "model.safetensors"
    ).stat().st_mode & 0o444 == 0o444  # the model server has another user


def command_of(container: dict[str, Any], **changed: str) -> list[str]:
    """The command for a source of one tensor: without what only a MaxText run has."""
    left_out = ("--item", "--select", "--map", "--config")
    words = {name: value for name, value in options(container).items() if name not in left_out}
    return ["reshard-init", *(f"{name}={value}" for name, value in {**words, **changed}.items())]


MOUNTED = """
mount -t tmpfs none "$TARGET" || exit 77
"$@" || exit 1
"$@" || exit 1
"$RESHARD" verify "$SOURCE" "$TARGET" || exit 1
ls -A "$TARGET"
"""


def test_the_volume_may_be_a_mount_point(image: Installation, at: Place) -> None:
    source, target = at.at("/training/1000"), at.at("/mnt/models")
    save(source)
    target.mkdir(parents=True)
    command = [*command_of(STORAGE), str(source), str(target)]
    mounting = ["unshare", "--mount", "--propagation", "private", "bash", "-c", MOUNTED, "bash"]
    here = {"PATH": f"{image.folder / 'bin'}:{os.environ['PATH']}", "SOURCE": str(source), "TARGET": str(target), "RESHARD": str(image.reshard)}  # fmt: skip
    done = subprocess.run([*mounting, *command], env=here, capture_output=True, text=True, timeout=120)  # fmt: skip
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this machine lets nobody mount a file system")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [".reshard-init.json", "model.safetensors", "slices.json"]  # fmt: skip
    assert [*target.iterdir()] == []


def test_the_source_and_the_config_lie_in_a_bucket(s3_bucket: Bucket, tmp_path: Path) -> None:
    """With the word before the scheme that KServe chooses by."""
    save(tmp_path / "trained")
    reshard.convert(tmp_path / "trained", f"{s3_bucket.url}/run/1000")
    s3_bucket.store().put("model/config.json", b'{"model_type": "own", "dtype": "bfloat16"}')
    command = command_of(STORAGE, **{"--config": f"{s3_bucket.url}/model"})
    module = [sys.executable, "-m", "reshard.cli.init_container"]
    words = [*module, *command[1:], f"llama3+{s3_bucket.url}/run/1000", str(tmp_path / "models")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "models" / "config.json").is_file()
    assert reshard.verify(tmp_path / "trained", tmp_path / "models").differences == 0


def test_the_page_runs_as_written(image: Installation, tmp_path: Path) -> None:
    save(tmp_path / "run" / "1000")
    path = f"{image.folder / 'bin'}:{os.environ['PATH']}"
    typed = [step for step in steps(PAGE.read_text("utf-8")) if step.kind == "command"]
    assert len(typed) == 3
    for step in typed:
        done = subprocess.run(["bash", "-c", step.text], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert is_as_shown(step.shown or "", done.stdout), done.stdout


def test_the_page_shows_what_lies_in_deploy() -> None:
    by_hand, kserve = code_of(PAGE, "yaml")
    assert yaml.safe_load(by_hand) == {name: CONVERT[name] for name in ("command", "args")}
    assert yaml.safe_load(kserve)["supportedUriFormats"] == KSERVE[0]["spec"]["supportedUriFormats"]
    assert KSERVE[1]["spec"]["predictor"]["model"]["storageUri"] in PAGE.read_text("utf-8")


def test_the_user_is_the_images() -> None:
    assert pod("Deployment", "llama")["securityContext"]["runAsUser"] == USER
