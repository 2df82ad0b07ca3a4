"""Stock clients of hubs and buckets, unmodified, load the files of views: each as a conversion writes it, by whichever client."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.oracles.oracle import Oracle, RefusedError
from tests.server.faces.viewed import (  # fmt: skip
    VIEWS,
    Programs,
    convert,
    put_view,
    put_views,
    save_config,
    save_llama,
    sums,
    variables,
)
from tests.server.forked import Forked
from tests.server.live import Live, environment, live
from tests.server.waiting import until


class World:
    """A server with views, their files as conversions write them, and clients in the environment of their users."""

    def __init__(self, server: Live, folder: Path, converted: dict[str, Path], loading: Oracle, models: Oracle) -> None:  # fmt: skip
        self.server, self.folder, self.converted = server, folder, converted
        self.loading, self.models = loading, models
        self.programs = Programs(variables(server.url, folder / "home"))

    def refused(self, oracle: Oracle, function: str, **arguments: Any) -> str:
        """The class and the text of a client's error."""
        with pytest.raises(RefusedError) as refused:
            oracle.ask(function, **arguments)
        return str(refused.value)

    def bytes_of(self, view: str, path: str) -> bytes:
        return (self.converted[view] / path).read_bytes()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("viewed")
    data = folder / "data"
    save_llama(data / "run" / "10")
    save_config(data / "model")
    # A client sends far more requests than that.
    with live(folder, requests_per_minute=40) as server:
        loading = Oracle("torch", variables=variables(server.url, folder / "new-home"), program="loading")  # fmt: skip
        models = Oracle("models", variables=variables(server.url, folder / "old-home"))
        loading.ask("save_unet", folder=str(data / "unet-files"))
        reshard.convert(data / "unet-files", data / "unet", to="orbax", mesh="data=4,model=2")
        converted = {name: convert(data, name, folder / "converted" / name) for name in VIEWS}
        put_views(server, *VIEWS)
        yield World(server, folder, converted, loading, models)
        loading.close()
        models.close()


def by_hf(w: World, view: str, folder: Path) -> dict[str, str]:
    w.programs.said("torch", "hf", "download", f"views/{view}", "--local-dir", folder)
    return sums(folder)


def by_older_hf(w: World, view: str, folder: Path) -> dict[str, str]:
    w.programs.said("models", "hf", "download", f"views/{view}", "--local-dir", folder)
    return sums(folder)


def by_aws_sync(w: World, view: str, folder: Path) -> dict[str, str]:
    w.programs.said("models", "aws", "s3", "sync", f"s3://views/{view}", folder)
    return sums(folder)


def by_aws_cp(w: World, view: str, folder: Path) -> dict[str, str]:
    w.programs.said("models", "aws", "s3", "cp", "--recursive", f"s3://views/{view}/", folder)
    return sums(folder)


def by_rclone(w: World, view: str, folder: Path) -> dict[str, str]:
    w.programs.said("models", "rclone", "copy", f"server:views/{view}", folder)
    w.programs.said("models", "rclone", "check", "--download", f"server:views/{view}", folder)
    return sums(folder)


def ask(oracle: Oracle, function: str, **arguments: Any) -> dict[str, str]:
    found: dict[str, str] = oracle.ask(function, **arguments)
    return found


DOWNLOADS: dict[str, Callable[[World, str, Path], dict[str, str]]] = {
    "hf 2": by_hf,
    "hf 0.36": by_older_hf,
    "snapshot_download 2": lambda w, view, _: ask(w.loading, "snapshot", repository=f"views/{view}"),
    "snapshot_download 0.36": lambda w, view, _: ask(w.models, "snapshot", repository=f"views/{view}"),
    "aws s3 sync": by_aws_sync,
    "aws s3 cp": by_aws_cp,
    "rclone": by_rclone,
    "boto3": lambda w, view, _: ask(w.loading, "boto3_files", bucket="views", prefix=f"{view}/", page=3),
    "obstore": lambda w, view, _: ask(w.models, "obstore_files", bucket="views", prefix=view),
    "s3fs": lambda w, view, folder: ask(w.models, "s3fs_files", path=f"views/{view}", folder=str(folder)),
}  # fmt: skip


@pytest.mark.parametrize("download", DOWNLOADS.values(), ids=DOWNLOADS)
def test_each_client_downloads_what_a_conversion_writes(
    world: World, tmp_path: Path, download: Callable[[World, str, Path], dict[str, str]]
) -> None:
    for view in ("llama", "unet"):
        assert download(world, view, tmp_path / view) == sums(world.converted[view])


def test_versions_are_those_that_are_meant(world: World) -> None:
    assert world.loading.ask("version").startswith("2.")
    assert world.models.ask("version").startswith("0.36.")


FILE = "model-00002-of-00006.safetensors"
BOUNDS = [[0, 8], [7, 5000], [5000, 5001], [9000, 19_000], [18_000, 19_040]]


def test_ranges(world: World) -> None:
    whole = world.bytes_of("llama", FILE)
    assert len(whole) == 19_040
    wanted = [whole[start:end] for start, end in BOUNDS]
    for oracle in (world.loading, world.models):
        assert oracle.ask("ranges", path=f"views/llama/{FILE}", bounds=BOUNDS) == wanted
    path = {"bucket": "views", "key": f"llama/{FILE}"}
    assert world.models.ask("obstore_ranges", **path, bounds=BOUNDS) == wanted
    assert world.models.ask("s3fs_ranges", path=f"views/llama/{FILE}", bounds=BOUNDS) == wanted


def test_lists(world: World) -> None:
    sizes = {path.name: path.stat().st_size for path in world.converted["llama"].iterdir()}
    for oracle in (world.loading, world.models):
        listed = oracle.ask("listed", path="views/llama")
        assert listed == {f"views/llama/{name}": nbytes for name, nbytes in sizes.items()}
        about = oracle.ask("about", repository="views/llama")
        assert (about["files"], sorted(about["siblings"])) == (sizes, sorted(sizes))
    assert world.models.ask("s3fs_folders", path="views") == [f"views/{name}" for name in sorted(VIEWS)]  # fmt: skip
    said = world.programs.said("models", "aws", "s3", "ls", "s3://views/llama/")
    assert {line.split()[3]: int(line.split()[2]) for line in said.splitlines()} == sizes
    said = world.programs.said("models", "rclone", "lsf", "--dirs-only", "server:views")
    assert said.split() == [f"{name}/" for name in sorted(VIEWS)]
    deep = world.models.ask("obstore_files", bucket="views", prefix="orbax")
    assert any("/" in name for name in deep)


def test_transformers_computes_the_same_logits(world: World) -> None:
    found = world.loading.ask("logits", place="views/llama")
    assert found == world.loading.ask("logits", place=str(world.converted["llama"]))
    assert found[1:] == [[], []]


def test_diffusers_computes_the_same(world: World) -> None:
    found = world.loading.ask("denoised", place="views/unet")
    assert found == world.loading.ask("denoised", place=str(world.converted["unet"]))


def test_tensors_by_headers_by_fsspec_and_by_the_streamer_of_vllm(world: World, tmp_path: Path) -> None:  # fmt: skip
    wanted = world.loading.ask("tensors", folder=str(world.converted["llama"]))
    assert len(wanted) > 20
    assert world.loading.ask("tensors_of_repository", repository="views/llama") == wanted
    pulled = tmp_path / "pulled"
    found = world.loading.ask("tensors_of_bucket", url="s3://views/llama", folder=str(pulled))
    assert found == wanted
    for name in ("config.json", "model.safetensors.index.json"):
        assert (pulled / name).read_bytes() == world.bytes_of("llama", name)
    shapes = {name: ["F32", about["shape"]] for name, about in wanted.items()}
    for oracle in (world.loading, world.models):
        assert oracle.ask("headers", repository="views/llama") == shapes


def test_torch_loads_files_of_its_distributed_checkpoint(world: World, tmp_path: Path) -> None:
    for download, folder in ((by_hf, tmp_path / "hub"), (by_aws_sync, tmp_path / "bucket")):
        assert download(world, "dcp", folder) == sums(world.converted["dcp"])
        found = world.loading.ask("tensors_by_dcp", folder=str(folder))
        assert found == world.loading.ask("tensors", folder=str(world.converted["llama"]))


def test_stock_orbax_restores_what_was_downloaded(world: World, tmp_path: Path) -> None:
    by_aws_sync(world, "orbax", tmp_path / "bucket")
    assert by_hf(world, "orbax", tmp_path / "hub").keys() == sums(tmp_path / "bucket").keys()
    with ocp.StandardCheckpointer() as checkpointer:
        wanted = checkpointer.restore(world.folder / "data" / "run" / "10")
        for folder in ("bucket", "hub"):
            found = checkpointer.restore(tmp_path / folder)
            paths = {path for path, _ in leaves(found)}
            assert paths == {path for path, _ in leaves(wanted)}
            for (path, array), (_, other) in zip(leaves(found), leaves(wanted), strict=True):
                np.testing.assert_array_equal(array, other, path)


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(tree, dict):
        return [(path, np.asarray(tree))]
    return [leaf for key in sorted(tree) for leaf in leaves(tree[key], f"{path}/{key}")]


def test_checksums_are_told_where_they_are_known(world: World) -> None:
    """boto3 compares them when it downloads (``boto3_files``); of a source without digests none is known of tensors."""
    import awscrt.checksums

    files = {"unet": ["diffusion_pytorch_model.safetensors", "config.json"], "llama": ["config.json", FILE]}  # fmt: skip
    for view, names in files.items():
        told = world.loading.ask("boto3_checksums", bucket="views", keys=[f"{view}/{name}" for name in names])  # fmt: skip
        for name, text in zip(names, told, strict=True):
            crc = awscrt.checksums.crc64nvme(world.bytes_of(view, name))
            known = base64.b64encode(crc.to_bytes(8, "big")).decode()
            assert text == (None if name == FILE else known)


def test_fifty_clients_at_once(world: World, tmp_path: Path) -> None:
    found = world.loading.ask("crowd", repository="views/llama", bucket="views", prefix="llama/", folder=str(tmp_path), clients=50)  # fmt: skip
    assert found == [sums(world.converted["llama"])] * 50


def test_each_step_is_a_revision(world: World, tmp_path: Path) -> None:
    """Of a run that goes on, clients load the newest step, and any earlier one by its id, until it is removed."""
    run, view = world.folder / "data" / "steps", "views/steps"
    for step in (1, 2):
        reshard.save(run / str(step), {"w": np.full((64, 64), step, np.float32)})
        reshard.convert(run / str(step), tmp_path / str(step), to="safetensors")
        if step == 1:
            put_view(world.server, "steps", source="data/steps", step="each")
            first = world.loading.ask("about", repository=view)["commit"]
    until(lambda: world.loading.ask("about", repository=view)["commit"] != first)
    newest, old = sums(tmp_path / "2"), sums(tmp_path / "1")
    assert world.loading.ask("snapshot", repository=view) == newest
    assert world.models.ask("snapshot", repository=view, revision=first) == old
    for prefix, files in (("steps/", newest), (f"steps@{first}/", old)):
        assert world.loading.ask("boto3_files", bucket="views", prefix=prefix, page=10) == files
    world.programs.said("models", "aws", "s3", "sync", f"s3://views/steps@{first}", tmp_path / "synced")  # fmt: skip
    world.programs.said("torch", "hf", "download", view, "--revision", first, "--local-dir", tmp_path / "cli")  # fmt: skip
    assert sums(tmp_path / "synced") == sums(tmp_path / "cli") == old
    shutil.rmtree(run / "1")
    said = "of the view 'steps' is not there any more, since its source was removed or changed; take main"
    gone = {"repository": view, "revision": first, "folder": str(tmp_path / "gone")}
    listing = ("s3", "ls", f"s3://views/steps@{first}/")
    until(lambda: said in world.programs.run("models", "aws", *listing).stderr, pause=0.2)
    for oracle in (world.loading, world.models):
        assert world.refused(oracle, "snapshot", **gone).startswith("RevisionNotFoundError: 410")
        assert said in world.refused(oracle, "snapshot", **gone)
    old_files = {"bucket": "views", "prefix": f"steps@{first}/", "page": 10}
    assert said in world.refused(world.loading, "boto3_files", **old_files)
    assert world.models.ask("snapshot", repository=view) == newest


WRONG = {"HF_TOKEN": "none-of-the-tokens", "AWS_SECRET_ACCESS_KEY": "not-the-secret-of-s3"}
DOWNLOAD = ("hf", "download", "views/llama")
PUT = ("aws", "s3", "cp", __file__, "s3://views/llama/config.json")
PROGRAMS: tuple[tuple[str, tuple[str, ...], Mapping[str, str], str], ...] = (
    ("torch", DOWNLOAD, WRONG, "a valid bearer token was expected in the Authorization header"),
    ("models", DOWNLOAD, WRONG, "HfHubHTTPError: 401 Client Error"),
    ("models", ("aws", "s3", "ls", "s3://views/"), WRONG, "(SignatureDoesNotMatch)"),
    ("models", ("rclone", "lsd", "--retries", "1", "server:views"), WRONG, "SignatureDoesNotMatch"),
    ("models", ("aws", "s3", "ls", "s3://views/"), {"AWS_ACCESS_KEY_ID": "nobody"}, "(InvalidAccessKeyId)"),
    ("models", ("aws", "s3", "ls", "s3://other/"), {}, "(NoSuchBucket)"),
    ("torch", ("hf", "download", "views/llama", "none.json"), {}, "File not found in repository"),
    ("models", PUT, {}, "(MethodNotAllowed) when calling the PutObject operation"),
    ("torch", ("hf", "upload", "views/llama", __file__), {}, "another method was expected; use GET, HEAD"),
)  # fmt: skip
"""An environment, a command of it, other variables, and a part of what it says on stderr."""


def test_programs_show_what_is_wrong(world: World) -> None:
    for library, words, more, part in PROGRAMS:
        done = world.programs.run(library, *words, **more)
        assert done.returncode != 0
        assert part in done.stderr, words


def test_clients_raise_the_errors_that_their_users_catch(world: World) -> None:
    nothing = [[0, 1]]
    for oracle in (world.loading, world.models):
        for error, function, arguments in (
            ("RepositoryNotFoundError: 404", "snapshot", {"repository": "views/none"}),
            ("RepositoryNotFoundError: 404", "snapshot", {"repository": "others/llama"}),
            ("RevisionNotFoundError: 404", "snapshot", {"repository": "views/llama", "revision": "0" * 40}),
            ("FileNotFoundError", "ranges", {"path": "views/llama/none", "bounds": nothing}),
        ):  # fmt: skip
            assert world.refused(oracle, function, **arguments).startswith(error)
    for function, arguments in (
        ("obstore_ranges", {"bucket": "views", "key": "llama/none"}),
        ("s3fs_ranges", {"path": "views/none/none"}),
    ):
        said = world.refused(world.models, function, **arguments, bounds=nothing)
        assert said.startswith("FileNotFoundError")


@pytest.mark.parametrize("source", ["hf://views/llama", "s3://views/llama", "s3://views/orbax"])
def test_reshard_itself_reads_a_view(world: World, tmp_path: Path, source: str) -> None:
    words = ["reshard", "convert", source, tmp_path / "out", "--to", "safetensors"]
    said = tmp_path / "said"
    done = Forked(words, {**environment(), **world.programs.variables}, tmp_path, said, said)
    assert done.wait(120) == 0, said.read_text()
    assert reshard.verify(world.converted[source.rpartition("/")[2]], tmp_path / "out").equal
