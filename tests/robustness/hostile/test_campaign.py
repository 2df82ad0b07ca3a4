"""Cases of random damage to whole checkpoints, and proof that the campaign sees what is wrong."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from reshard.formats.registry import open_reader
from tests.campaigns import examples
from tests.robustness.hostile import campaign
from tests.robustness.hostile.campaign import run_campaign
from tests.robustness.hostile.operations import OPTIONS, Seen, check_equal, operate
from tests.robustness.hostile.watch import Watch, snapshot

CASES = examples(150)
KEEP = OPTIONS.index({"compression": "keep"})
"""A seed that converts so."""


def test_random_damage_is_refused_or_harmless(specimens, tmp_path):
    found = run_campaign(specimens, tmp_path, range(1, CASES + 1), 500.0)
    assert found.wrong == []
    assert found.cases == CASES
    outcomes = {text.partition(": ")[2] for text in found.outcomes}
    assert {"ok", "CorruptError"} <= outcomes


def test_the_same_seed_makes_the_same_case(specimens, tmp_path):
    from tests.robustness.hostile.cases import make_case

    for seed in range(40, 52):
        made = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            said = make_case(seed, specimens, folder)
            files = {p.relative_to(folder): _content(p) for p in folder.rglob("*")}
            made.append((said, files))
            shutil.rmtree(folder)
        assert made[0] == made[1]


def test_damage_copied_encoded_is_no_difference_but_a_broken_target_is(specimens, tmp_path):
    intact, damaged = specimens / "ocdbt-zarr2", tmp_path / "damaged"
    shutil.copytree(intact, damaged)
    chunk = open_reader(str(damaged)).locate("big", (0,))
    assert chunk is not None
    with Path(chunk.path).open("r+b") as file:
        file.seek(chunk.offset + 4)  # a frame's flags behind its magic number; 8 is reserved
        flags = file.read(1)[0]
        file.seek(chunk.offset + 4)
        file.write(bytes([flags | 8]))
    seen = operate(damaged, tmp_path / "target", KEEP)
    assert seen.outcomes["convert"] == "ok"
    assert seen.outcomes["restore"] == "CorruptError"
    assert seen.wrong == []

    broken = Seen()
    check_equal(broken, intact, tmp_path / "target", {"big"})
    assert len(broken.wrong) == 1
    assert broken.wrong[0].startswith("the target differs: ")


def _content(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path).replace("/b/", "/a/")  # noqa: PTH115  paths are text here
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 26 else path.is_dir()


@pytest.fixture(scope="module")
def watch():
    """Audit hooks stay for good, so that there is one."""
    return Watch()


def test_the_watch_sees_writes_elsewhere(watch, tmp_path):
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "old").write_bytes(b"1")
    (allowed / "way_out").symlink_to(other)
    watch.allowed, watch.is_on = (str(allowed),), True
    try:
        (allowed / "fine").write_bytes(b"1")
        (allowed / "fine").rename(allowed / "finer")
        assert watch.outside == []
        (other / "new").write_bytes(b"2")
        (other / "old").rename(allowed / "stolen")
        (allowed / "way_out" / "through").mkdir()
        (other / "new").unlink()
    finally:
        watch.is_on = False
    seen = [text.partition(" ")[0] for text in watch.outside]
    assert seen == ["open", "os.rename", "os.mkdir", "os.remove"]


def test_the_snapshot_sees_what_changed(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    before = snapshot(tmp_path)
    (tmp_path / "a").write_bytes(b"22")
    (tmp_path / "b").symlink_to("nowhere")
    after = snapshot(tmp_path)
    assert {
        Path(p).name for p in before.keys() | after.keys() if before.get(p) != after.get(p)
    } == {"a", "b"}


SABOTAGE = {
    1: ("raise ValueError('foreign')", "ValueError: foreign"),
    2: ("bytearray(320 << 20)", "it takes 3"),
    3: ("open('elsewhere', 'w').close()", "writes open"),
    4: ("(src / '_METADATA').write_text('{}')", "changed"),
    8: ("print('\\x1b[2J')", "inspect prints '\\x1b'"),
    9: ("import os; os._exit(7)", "the process ends with 7"),
    10: ("import time; time.sleep(1000)", "the process hangs"),
}
"""Seed → what an operation does wrong, and what the campaign says of it."""


def test_the_campaign_notices_what_goes_wrong(specimens, tmp_path, monkeypatch):
    codes = {seed: code for seed, (code, _) in SABOTAGE.items()}
    (tmp_path / "sitecustomize.py").write_text(_SABOTAGE.format(codes=codes))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(campaign, "CASE_BYTES", 256 << 20)
    *ending, hanging = SABOTAGE
    wrong = run_campaign(specimens, tmp_path / "work", ending, 500.0, lambda _: None).wrong
    monkeypatch.setattr(campaign, "HANG_SECONDS", 4.0)  # it hangs however long it is waited for
    wrong += run_campaign(specimens, tmp_path / "work", [hanging], 500.0, lambda _: None).wrong
    for seed, (_, text) in SABOTAGE.items():
        assert any(w.startswith(f"seed {seed} ") and text in w for w in wrong), (seed, wrong)
        assert (tmp_path / "work" / "wrong" / str(seed) / "src").is_dir()


_SABOTAGE = """
import sys
if any("tests.robustness.hostile.child" in a for a in sys.orig_argv):
    import reshard
    real = reshard.inspect
    codes = {codes}
    def inspect(src, **options):
        number = str(src).rpartition("/case")[2].partition("/")[0]
        exec(codes[int(number)] if number.isdigit() else "")
        return real(src, **options)
    reshard.inspect = inspect
"""
