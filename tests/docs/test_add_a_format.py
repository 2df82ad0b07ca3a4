"""The distribution of docs/how-to/add-a-format.md, installed in a folder of its own, adds a format to every command."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.formats.known_formats import GROUP, added_formats
from tests.docs.page import blocks, code_of, commands, is_as_shown
from tests.docs.run_page import DOCS, environment

PAGE = DOCS / "how-to" / "add-a-format.md"
ARRAYS = {
    "kernel": np.arange(12.0).reshape(3, 4),
    "turned": np.asfortranarray(np.arange(24, dtype="int16").reshape(4, 3, 2)),
    "ünï/step": np.array(7),
    "none": np.zeros((0, 3), "float16"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs, as pip does, the page's distribution: its module, and its entry points."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "reshard_npz.py").write_text(code_of(PAGE, "python")[0])
    project = tomllib.loads(code_of(PAGE, "toml")[0])["project"]
    install(folder, project["name"], project["entry-points"])
    return folder


def install(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{point} = {value}" for point, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def added(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))


@pytest.fixture(autouse=True)
def looked_up_anew() -> Iterator[None]:
    added_formats.cache_clear()
    yield
    added_formats.cache_clear()


def test_the_commands_of_the_page_run(site: Path, tmp_path: Path) -> None:
    found = [step for block in blocks(PAGE.read_text("utf-8")) for step in commands(block)]
    assert [step.text.split()[1] for step in found[1:]] == ["inspect", "convert", "verify"]
    for step in found:
        env = environment() | {"PYTHONPATH": str(site)}
        done = subprocess.run(
            shlex.split(step.text),
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert step.shown is not None or done.stdout == ""
        assert is_as_shown(step.shown or "", done.stdout)
    back = reshard.restore(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(back["kernel"], np.arange(12.0).reshape(3, 4))


@pytest.mark.usefixtures("added")
def test_archives_of_numpy_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    assert reshard.inspect(tmp_path / "a.npz").format == "npz"
    report = reshard.convert(tmp_path / "a.npz", tmp_path / "o", to="orbax")
    assert report.tensors
    assert reshard.verify(tmp_path / "a.npz", tmp_path / "o").differences == 0
    back = reshard.restore(tmp_path / "a.npz")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.usefixtures("added")
def test_damaged_archives_and_others_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    with pytest.raises(reshard.FormatError, match=r"'kernel.npy' is compressed; load it"):
        reshard.inspect(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **ARRAYS)
    whole = (tmp_path / "b.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[:-1])
    with pytest.raises(reshard.CorruptError, match=r"is no \.npz file: .*restore it from a copy"):
        reshard.inspect(tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as file:
        file.writestr("w.npy", whole[whole.index(b"\x93NUMPY") :][:200])
    with pytest.raises(reshard.CorruptError, match=r"'w.npy' does not have the bytes of its shape"):
        reshard.inspect(tmp_path / "c.npz")


@pytest.mark.usefixtures("added")
def test_it_is_only_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    with pytest.raises(reshard.PlanError, match=r"^to is 'npz'; expected one of .*'tensorflow'"):
        reshard.convert(tmp_path / "a.npz", tmp_path / "b", to="npz")  # type: ignore[arg-type]
    with pytest.raises(reshard.PlanError, match="npz are only read, and the target has the format"):
        reshard.convert(tmp_path / "a.npz", tmp_path / "b")


def test_without_the_distribution_it_says_where_to_go(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    with pytest.raises(reshard.NotACheckpointError, match=r"it is an archive of numpy \(\.npz\)"):
        reshard.inspect(tmp_path / "a.npz")


def test_a_format_that_is_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "npy", {GROUP: {"npy": "tests.npy_format:NPY"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    reshard.save(tmp_path / "saved", {"w": np.arange(4)})
    reshard.convert(tmp_path / "saved", tmp_path / "made", to="npy")  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.load(tmp_path / "made" / "w.npy"), np.arange(4))
    assert reshard.verify(tmp_path / "saved", tmp_path / "made").differences == 0
    assert reshard.convert(tmp_path / "saved", tmp_path / "made", to="npy").already_done  # type: ignore[arg-type]


BROKEN = """
from msgspec.structs import replace
from reshard.formats.known_formats import FORMATS
from reshard.options import Option
other = 5
own = FORMATS[0]
odd = replace(own, about=replace(own.about, name="odd", options={"speed": Option(kind="flag", help="")}))
"""


@pytest.mark.parametrize(
    ("point", "value", "message"),
    [
        ("x", "no_such:X", "cannot be loaded: ModuleNotFoundError: No module named 'no_such'; repair or remove"),
        ("x", "broken:other", "is no reshard.formats.format.Format of that name"),
        ("x", "broken:own", "is no reshard.formats.format.Format of that name"),
        ("orbax", "broken:own", "or its name is one of reshard's own; repair or remove that distribution"),
        ("odd", "broken:odd", "has the option 'speed', which reshard does not have; a format may take options of"),
    ],
)  # fmt: skip
def test_a_distribution_that_is_broken_is_named(
    point: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    install(tmp_path, "broken-one", {GROUP: {point: value}})
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(reshard.FormatError) as caught:
        reshard.inspect(tmp_path / "none")
    text = str(caught.value)
    begins = (
        f"the entry point {point} = {value} of the group {GROUP} of the distribution broken-one "
    )
    assert text.startswith(begins)
    assert message in text


def test_no_other_call_looks_them_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: str) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    reshard.save(tmp_path / "saved", {"w": np.arange(4)})
    for to in ("safetensors", "orbax"):
        reshard.convert(tmp_path / "saved", tmp_path / to, to=to)
        assert reshard.verify(tmp_path / "saved", tmp_path / to).differences == 0
    with pytest.raises(AssertionError, match="looked up"):
        reshard.inspect(tmp_path)


STORE = """
from reshard.storage.location import Location, locate

def open_url(url):
    return Location(locate("/").store, url.removeprefix("mem:/"))

def wrong(url):
    return url
"""


def test_a_store_is_added_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stores_of_others.py").write_text(STORE)
    points = {"mem": "stores_of_others:open_url", "odd": "stores_of_others:wrong"}
    install(tmp_path, "others", {"reshard.stores": points})
    monkeypatch.syspath_prepend(str(tmp_path))
    reshard.save(tmp_path / "saved", {"w": np.arange(4)})
    assert list(reshard.inspect(f"mem:/{tmp_path}/saved").tensors) == ["w"]
    reshard.convert(f"mem:/{tmp_path}/saved", tmp_path / "t", to="safetensors")
    assert reshard.verify(f"mem:/{tmp_path}/saved", tmp_path / "t").differences == 0
    with pytest.raises(
        reshard.StorageError, match=r"odd = stores_of_others:wrong .* gave no Location"
    ):
        reshard.inspect("odd://a/b")
    with pytest.raises(reshard.StorageError, match="reading from none:// is not supported"):
        reshard.inspect("none://a/b")
