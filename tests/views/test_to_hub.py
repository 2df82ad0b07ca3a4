"""A conversion to a model repository on the hub: one commit, with the files of a conversion to a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import reshard
from reshard import Target
from reshard.errors import (
    ForbiddenError,
    MissingPackageError,
    PlanError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from tests.checkpoint_files import files_of
from tests.emulators.hub import Fault, Hub
from tests.robustness.buckets.children import Awaited, start
from tests.views.sources import MAP, SIZES, save_source

URL = "hf://org/model"
SHARDS = {"map": MAP, "sizes": SIZES, "file_bytes": 60_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source(tmp_path_factory.mktemp("to_hub") / "source")


@pytest.fixture
def writer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub on which the user may write."""
    hub.tokens["hf_writer"] = frozenset()
    hub.writers.add("hf_writer")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    return hub


def head(hub: Hub, branch: str = "main") -> str:
    return hub.repo("org/model").refs[branch]


def files_at(hub: Hub, branch: str = "main") -> dict[str, bytes]:
    files = hub.repo("org/model").commits[head(hub, branch)]
    return {path: data for path, data in files.items() if path != ".gitattributes"}


def converted(source: Path, target: Path, **options: object) -> dict[str, bytes]:
    reshard.convert(source, target, **{"to": "safetensors", **options})
    return files_of(target)


def sent(hub: Hub) -> list[str]:
    return [one.path.partition("?")[0] for one in hub.asked("cdn", method="PUT")]


FORMS = {
    "shards": SHARDS,
    "a cast": {**SHARDS, "cast": {"float": "bfloat16"}},
    "one file": {"files": "one"},
    "a single shard": {},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_the_files_are_those_of_a_conversion_to_a_folder(
    source: Path, writer: Hub, tmp_path: Path, options: dict
) -> None:
    name = "out.safetensors" if options.get("files") == "one" else "out"
    expected = converted(source, tmp_path / name, **options)
    expected = {path or "model.safetensors": data for path, data in expected.items()}
    report = reshard.convert(source, URL, **options)
    assert files_at(writer) == expected
    assert report.written_bytes == sum(map(len, expected.values()))
    local = reshard.convert(source, tmp_path / "again", to="safetensors", **options)
    known = [(t.source, t.target, t.target_dtype, t.target_digest) for t in local.tensors]
    assert known == [(t.source, t.target, t.target_dtype, t.target_digest) for t in report.tensors]


def test_the_client_of_the_hub_downloads_it(source: Path, writer: Hub, tmp_path: Path) -> None:
    reshard.convert(source, f"{URL}@step-1", **SHARDS)
    call = "import sys, huggingface_hub as h; h.snapshot_download('org/model', revision='step-1', local_dir=sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", call, tmp_path / "found"], check=True
    )  # its constants are made of the environment
    found = files_at(writer, "step-1")
    assert len(found) == 6
    assert {path: (tmp_path / "found" / path).read_bytes() for path in found} == found


def test_files_of_the_model_go_along(source: Path, writer: Hub, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "none"}')
    (model / "tokenizer.json").write_bytes(b"x" * 10_000)  # a large file, for this hub
    reshard.convert(source, f"{URL}/a/b", **SHARDS, config=model)
    local = converted(source, tmp_path / "out", **SHARDS, config=model)
    assert files_at(writer) == {f"a/b/{path}": data for path, data in local.items()}
    assert {"config.json", "tokenizer.json"} <= local.keys()
    assert len(sent(writer)) == 5


def test_an_identity_is_carried(source: Path, writer: Hub, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    root = reshard.convert(source, recorded, identity="compute").identity.root
    report = reshard.convert(recorded, URL)
    assert report.identity.root == root
    assert json.loads(files_at(writer)["identity.json"])["root"] == root


def test_a_missing_repository_is_made_private_and_a_missing_branch_is_empty(
    source: Path, writer: Hub
) -> None:
    report = reshard.convert(source, URL)
    assert report.warnings[-1] == "the hub had no repository org/model: it was made, and is private"
    repo = writer.repo("org/model")
    assert repo.is_private
    assert repo.messages[head(writer)].startswith("Write weights\n\nreshard: ")
    assert len(repo.commits) == 2
    repo.commit({"README.md": b"a card", "other.safetensors": b"of main"})
    main = head(writer)
    report = reshard.convert(source, f"{URL}@step-7", cast={"float": "bfloat16"})
    assert report.warnings == ()
    assert "README.md" not in files_at(writer, "step-7")
    assert {"model.safetensors", "slices.json"} <= files_at(writer, "step-7").keys()
    assert repo.parents[repo.parents[repo.refs["step-7"]]] == ""
    assert head(writer) == main


def test_the_same_call_again_does_nothing(source: Path, writer: Hub) -> None:
    first = reshard.convert(source, URL, **SHARDS)
    writer.repo("org/model").commit({"README.md": b"a card"})
    writer.log.clear()
    again = reshard.convert(source, URL, **SHARDS)
    assert again.already_done
    assert [t.target_digest for t in again.tensors] == [t.target_digest for t in first.tensors]
    assert not sent(writer)
    assert not writer.asked(method="POST")


def test_what_was_sent_before_a_kill_is_not_sent_again(source: Path, writer: Hub) -> None:
    killed, calls = Awaited(), list[int]()
    environment = {name: os.environ[name] for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HOME")}

    def kill_at_third() -> None:
        calls.append(1)
        if len(calls) >= 3:
            killed.kill()
            raise ConnectionAbortedError  # nothing of these files is kept

    writer.faults.append(Fault("?signature=", times=None, call=kill_at_third))
    killed.is_this(child := start(environment, source, URL, {**SHARDS, "workers": 1}))
    assert child.ended() == -9
    assert not files_at(writer)
    arrived = set(writer.stored)
    assert len(arrived) < 5  # with a small file of the first commit
    writer.faults.clear()
    writer.log.clear()
    report = reshard.convert(source, URL, **SHARDS)
    large = {path: data for path, data in files_at(writer).items() if "-of-" in path}
    assert len(large) == 4
    assert not arrived & {path.removeprefix("/") for path in sent(writer)}
    assert (
        0
        < report.resumed_bytes
        == sum(len(data) for data in large.values() if _sha256(data) in arrived)
    )
    assert len(writer.repo("org/model").commits) == 2


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_large_files_go_in_parts(source: Path, writer: Hub, tmp_path: Path) -> None:
    writer.part_bytes = 7_001
    reshard.convert(source, URL, cast={"float": "bfloat16"})
    assert files_at(writer) == converted(source, tmp_path / "out", cast={"float": "bfloat16"})
    assert len(sent(writer)) > 10


def test_a_commit_in_between_refuses_this_one(source: Path, writer: Hub) -> None:
    reshard.convert(source, URL)
    repo = writer.repo("org/model")

    def other() -> None:
        repo.commit({"README.md": b"a card"})

    writer.faults.append(Fault("/commit/", call=other))
    with pytest.raises(TargetBusyError) as caught:
        reshard.convert(source, URL, overwrite=True, cast={"float": "bfloat16"})
    said = str(caught.value)
    assert said.startswith(f"the hub {writer.url} does not take {URL}, and nothing was committed: ")
    assert "A commit has happened since" in said
    assert said.endswith("; look at the commit that came in between, and run the same again")
    assert len(repo.commits) == 3
    reshard.convert(source, URL, overwrite=True, cast={"float": "bfloat16"})
    assert repo.parents[head(writer)] == list(repo.commits)[2]


def test_weights_are_replaced_only_where_that_is_asked(source: Path, writer: Hub) -> None:
    before = {
        "config.json": b"{}", "README.md": b"a card", "tokenizer.json": b"{}", "model-00009-of-00009.safetensors": b"old",
        "pytorch_model-00001-of-00002.bin": b"old", "pytorch_model.bin.index.json": b"{}", "slices.json": b"{}", "identity.dsse.json": b"{}",
        "model.safetensors.index.json": b"{}", "onnx/model.safetensors": b"another model", "training_args.bin": b"kept",
    }  # fmt: skip
    writer.tokens["hf_writer"] = frozenset({"org/model"})
    repo = writer.repo("org/model")
    repo.commit(before)
    with pytest.raises(TargetExistsError) as caught:
        reshard.convert(source, URL, **SHARDS)
    assert str(caught.value).startswith(f"{URL} has weights already, such as ")
    assert str(caught.value).endswith(
        "; name another branch or folder, or replace them (overwrite)"
    )
    assert not sent(writer)
    reshard.convert(source, URL, **SHARDS, overwrite=True)
    found = files_at(writer)
    kept = {
        "config.json",
        "README.md",
        "tokenizer.json",
        "onnx/model.safetensors",
        "training_args.bin",
    }
    assert {path for path in before if found.get(path) == before[path]} == kept
    shards = {f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)}
    assert found.keys() == kept | shards | {"model.safetensors.index.json", "slices.json"}
    reshard.convert(source, f"{URL}/other", **SHARDS)  # a folder without weights
    assert files_at(writer).keys() == found.keys() | {
        f"other/{path}" for path in found.keys() - kept
    }


def test_a_source_that_changes_meanwhile_is_not_committed(
    source: Path, writer: Hub, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(source, copied)

    def change() -> None:
        file = next(path for path in copied.rglob("*") if path.is_file())
        file.write_bytes(file.read_bytes())

    writer.faults.append(Fault("?signature", call=change))
    with pytest.raises(SourceChangedError, match="was changed since the view of it was planned"):
        reshard.convert(copied, URL, **SHARDS)
    assert not files_at(writer)
    with pytest.raises(SourceChangedError):  # when all was read, and the hub has all files
        reshard.convert(copied, URL, **SHARDS, progress=_once("slices.json", change))
    assert not files_at(writer)


def _once(name: str, call: Callable[[], None]) -> Callable[[reshard.Progress], None]:
    """Calls once, when a file is read."""
    left = [call]

    def tell(progress: reshard.Progress) -> None:
        if progress.tensor == name and left:
            left.pop()()

    return tell


def test_progress_is_told_in_two_stages(source: Path, writer: Hub) -> None:
    told: list[reshard.Progress] = []
    published: list[str] = []
    report = reshard.convert(source, URL, **SHARDS, progress=told.append, before_publish=published.append)  # fmt: skip
    assert published == [URL]
    stages = [progress.stage for progress in told]
    assert set(stages) == {"reading", "copying"}
    assert stages == sorted(stages, reverse=True)
    assert all(progress.moved_bytes <= progress.total_bytes for progress in told)
    assert told[-1].moved_bytes == told[-1].total_bytes == report.written_bytes
    with pytest.raises(KeyError):

        def refuse(_: str) -> None:
            raise KeyError

        reshard.convert(source, f"{URL}@other", before_publish=refuse)
    assert not files_at(writer, "other")


def test_a_file_that_gitignore_names_would_be_missing(source: Path, writer: Hub) -> None:
    writer.tokens["hf_writer"] = frozenset({"org/model"})
    writer.repo("org/model").commit({".gitignore": b"*.safetensors\n"})
    with pytest.raises(
        StorageError, match=r"the file \.gitignore of hf://org/model leaves files out of the commit"
    ):
        reshard.convert(source, URL)
    assert files_at(writer).keys() == {".gitignore"}


def test_several_checkpoints_are_merged_to_the_hub(
    source: Path, writer: Hub, tmp_path: Path
) -> None:
    report = reshard.merge([source, source], URL)
    assert (
        report.merged == "averaged 13 tensors of 2 checkpoints, each with the weight 0.5; copied 0"
    )
    reshard.merge([source, source], tmp_path / "out", to="safetensors")
    assert files_at(writer) == files_of(tmp_path / "out")


def test_a_tensor_that_needs_the_memory_of_all_streams_gets_it(
    writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from reshard.views import to_hub

    state = {"w": np.arange(1 << 20, dtype=np.float32)}
    source = tmp_path / "source"
    reshard.save(tmp_path / "saved", state)
    reshard.convert(tmp_path / "saved", source, compression="zstd")
    asked: list[int] = []
    real = to_hub.CheckpointView

    def view(chosen: object, target: object) -> object:
        asked.append(target.max_memory)
        return real(chosen, target)

    monkeypatch.setattr(to_hub, "CheckpointView", view)
    reshard.convert(source, URL, max_memory="12MiB", workers=4)
    assert asked == [3 << 20, 12 << 20]
    assert "model.safetensors" in files_at(writer)


@pytest.mark.parametrize(
    ("tokens", "status", "said"),
    [
        (None, 401, "401"),
        ("hf_unknown", 401, "Invalid credentials in Authorization header"),
        ("hf_reader", 403, "You don't have the rights to write here"),
    ],
)
def test_a_token_that_may_not_write_is_told_what_it_needs(
    source: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, tokens: str | None, status: int, said: str
) -> None:  # fmt: skip
    hub.tokens["hf_reader"] = frozenset({"org/model"})
    if tokens is not None:
        monkeypatch.setenv("HF_TOKEN", tokens)
    with pytest.raises(ForbiddenError) as caught:
        reshard.convert(source, URL)
    text = str(caught.value)
    assert text.startswith(f"the hub {hub.url} does not take {URL}, and nothing was committed: ")
    assert said in text
    assert text.endswith("; give a token that may write to it (HF_TOKEN, or hf auth login)")
    assert {one.status for one in hub.asked(method="POST")} <= {status}


def test_a_hub_that_is_away_is_named_in_one_error(
    source: Path, writer: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.storage.hub import client

    monkeypatch.setattr(client, "RETRY_S", 1.0)
    writer.faults.append(Fault("", status=503, times=None))
    with pytest.raises(StorageError) as caught:
        reshard.convert(source, URL)
    text = str(caught.value)
    assert text.startswith(f"the hub {writer.url} does not take {URL}, and nothing was committed: ")
    assert "503" in text
    assert text.endswith("; run the same again, which sends no file twice")
    assert len(writer.asked(part="/revision/")) > 1


def test_without_the_package_the_error_says_how_to_install_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        MissingPackageError,
        match=r"hf:// needs the package huggingface_hub; run pip install '\.\[hf\]'",
    ):
        reshard.convert(source, URL)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("hf://datasets/org/model", {}, "should be a folder on a branch of a model"),
        (f"{URL}@{'0' * 40}", {}, "should be a folder on a branch of a model"),
        (f"{URL}/model.safetensors", {}, "name such a folder (target)"),
        (URL, {"to": "orbax"}, "leave out other formats (to), files of slices (files) and checks (check)"),
        (URL, {"files": "ranks", "mesh": "model=2"}, "gets safetensors files of whole tensors"),
        (URL, {"check": "readback"}, "the hub itself compares with their SHA-256"),
        (URL, {"identity": "compute"}, "identity is 'compute', but of a view nothing is read before it is asked for"),
        (URL, {"parts": 2}, "leave out executor and parts"),
        (URL, {"state": "s3://bucket/state"}, "leave it out (state)"),
        ("hf://org", {}, "names no repository of the hub"),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    source: Path, writer: Hub, target: str, options: dict, said: str
) -> None:
    with pytest.raises((PlanError, StorageError)) as caught:
        reshard.convert(source, target, **options)
    assert said in str(caught.value)
    assert not writer.repos


@pytest.mark.usefixtures("writer")
def test_one_of_several_targets_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(
        PlanError,
        match="a target on the hub is made by one process, in a commit of its own; convert to it alone",
    ):
        reshard.convert_all(source, [Target(URL), Target(tmp_path / "out")])
    assert reshard.convert_all(source, [Target(URL)]).reports[0].target == URL


def test_a_bucket_of_the_hub_is_written_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.conversion.check_target import check_target
    from reshard.engine.limits import limits_of

    settings = tmp_path / "buckets.toml"
    settings.write_text('["s3://run"]\nendpoint = "https://s3.hf.co/org"\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    asked = Target("hf://buckets/org/run/served/7", state="s3://other/state")
    assert check_target(asked, limits_of(None, None)).target == "s3://run/served/7"


def test_only_whole_conversions_are_written_to_the_hub(source: Path, hub: Hub) -> None:
    import numpy as np

    hub.repo("org/model").commit({"README.md": b"a card"})
    said = "the hub gets whole conversions only"
    with pytest.raises(StorageError, match=said):
        reshard.save(URL, {"w": np.zeros(3)})
    with pytest.raises(StorageError, match=said):
        reshard.convert_part(source, URL, part="1/2")
    assert not hub.asked(method="POST")


def test_a_plan_asks_the_hub_for_nothing(source: Path, hub: Hub) -> None:
    plan = reshard.plan(source, URL, **SHARDS)
    assert plan.target is None
    assert {tensor.target for tensor in plan.tensors} >= {"gate.weight", "qkv.weight"}
    assert not hub.log


def test_a_command_writes_to_the_hub(source: Path, writer: Hub) -> None:
    command = [sys.executable, "-m", "reshard", "convert", str(source), URL, "--file-bytes", "60kB"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    warning = "warning: the hub had no repository org/model: it was made, and is private"
    assert done.stdout.splitlines()[-1] == warning
    assert "Xet" not in done.stderr
    assert "LFS" not in done.stderr
    assert "model.safetensors.index.json" in files_at(writer)
