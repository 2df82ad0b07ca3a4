"""Another source or other options than those of the interrupted run: refused by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import reshard
from reshard.errors import (
    ResumeError,
    SourceChangedError,
)
from reshard.storage.local.staging import staging_for
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.cases import ROWS
from tests.robustness.crash.interrupted import (
    CASE,
    stop,
)

pytestmark = pytest.mark.usefixtures("small_batches")


CHANGES = {
    "chunk_bytes was 256 MiB and is 32768 bytes": {"chunk_bytes": 32768},
    "compression was raw[+]crc32c and is zstd:1[+]crc32c": {"compression": "zstd"},
    r"drop was \[\] and is \['small'\]": {"drop": ["small"]},
    r"cast was \[\] and is \['rows=bfloat16'\]": {"cast": [("rows", "bfloat16")]},
    r"rename was \[\] and is \[\('\^rows', 'a=b'\)\]": {"rename": [("^rows", "a=b")]},
    "ocdbt was False and is True": {"ocdbt": True},
    "style was None and is v1": {"style": "v1"},
    "layout was .* and is as in the source": {"layout": None, "compression": "keep"},
    # The chunks are the same, but not what is recorded of them.
    "layout was .* and is .*'axes': .'y'.": {
        "layout": {
            **ROWS,
            "mesh": {"axes": ["y"], "shape": [4]},
            "rules": [{"match": "rows|both", "axes": ["y"]}],
        }
    },
}


@pytest.mark.parametrize("text", CHANGES)
def test_changed_options_are_refused_by_name(text, unfinished, source, target, expected):
    before = unfinished.journal.read_bytes()
    with pytest.raises(
        ResumeError, match=f"another conversion: .*{text}.*give the same again.*restart"
    ):
        reshard.convert(source, target, **{**CASE.options, **CHANGES[text]})
    assert unfinished.journal.read_bytes() == before
    assert reshard.convert(source, target, **CASE.options).resumed_bytes > 0
    assert files_without_times(target) == expected


@pytest.mark.usefixtures("unfinished")
def test_options_that_change_no_task_do_not_prevent_a_resume(source, target, expected):
    options = {**CASE.options, "max_memory": "65MiB", "check": "readback", "overwrite": True}
    assert reshard.convert(source, target, **options).resumed_bytes > 0
    assert files_without_times(target) == expected


@pytest.mark.usefixtures("unfinished")
def test_restart_starts_over(source, target):
    options = {**CASE.options, "cast": [("rows", "bfloat16")]}
    report = reshard.convert(source, target, restart=True, **options)
    assert report.resumed_bytes == 0
    assert {t.target_dtype for t in report.tensors if t.target == "rows"} == {"bfloat16"}
    assert [p.name for p in target.parent.iterdir()] == ["t"]


def test_a_source_that_changed_between_the_runs(source, target, tmp_path):
    own = Path(shutil.copytree(source, tmp_path / "own"))
    stop(own, target, KeyboardInterrupt())
    file = next(p for p in own.rglob("*") if p.is_file())
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    with pytest.raises(ResumeError, match="another conversion: the source changed since; "):
        reshard.convert(own, target, **CASE.options)
    with pytest.raises(ResumeError, match=r"the source was '.*own' and is '.*raw'"):
        reshard.convert(source, target, **CASE.options)
    assert reshard.convert(own, target, restart=True, **CASE.options).resumed_bytes == 0


@pytest.mark.parametrize("change", ["touched", "added", "grown", "replaced"])
def test_a_source_that_changed_while_it_was_read(change, source, target, tmp_path):
    own = Path(shutil.copytree(source, tmp_path / "own"))

    def change_it(progress):
        if progress.tasks_done == progress.tasks and progress.stage == "copying":
            file = own / "small" / "0"
            file = file if file.exists() else next(p for p in own.rglob("*") if p.is_file())
            data = file.read_bytes()
            if change == "added":
                (own / "new").write_text("x")
            elif change == "touched":
                os.utime(file, ns=(0, 1))
            elif change == "grown":
                file.write_bytes(data + b"x")
            else:
                file.unlink()
                file.write_bytes(data)

    with pytest.raises(
        SourceChangedError, match=r"changed while it was read.*the output was discarded"
    ):
        reshard.convert(own, target, progress=change_it, **CASE.options)
    assert [p.name for p in tmp_path.iterdir()] == ["own"]


def test_the_output_of_another_interrupted_conversion_is_not_removed(source, target):
    """It may take the target's place later; that the target is finished is no reason to lose it."""
    reshard.convert(source, target, **CASE.options)
    other = {**CASE.options, "cast": [("rows", "bfloat16")], "overwrite": True}
    stop(source, target, KeyboardInterrupt(), 5, **other)
    assert reshard.convert(source, target, **CASE.options).already_done
    assert staging_for(target).journal.exists()
    assert reshard.convert(source, target, **other).resumed_bytes > 0
    assert [p.name for p in target.parent.iterdir()] == ["t"]
