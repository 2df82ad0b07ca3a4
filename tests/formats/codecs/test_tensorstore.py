"""A process that was forked after TensorStore's threads had worked is refused; TensorStore would end it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.formats.orbax.by_hand import write_item, zarr2

ARRAYS = {"w": (np.arange(6, dtype=np.float32), zarr2((3,), compressor={"id": "bz2", "level": 1}))}

# Forks twice: before and after TensorStore has worked in the parent. Each child says how it ended.
PROGRAM = """
    import os, sys
    import reshard
    source, target, words = sys.argv[1:]

    def restored():
        return reshard.restore(source)["w"].tolist()

    def converted():
        return reshard.convert(source, target, ocdbt=True, max_memory="64MiB", workers=1)

    def by_another():
        import tensorstore as ts
        kept = ts.KvStore.open({"driver": "file", "path": f"{target}-of-another/"}).result()
        kept.write("key", b"value").result()

    def child(does):
        pid = os.fork()
        if pid == 0:
            try:
                print(does(), flush=True)
            except reshard.StorageError as error:
                print(error, flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    use, does = (globals()[word] for word in words.split())
    reshard.open_checkpoint(source)
    child(restored)
    use()
    child(does)
"""
REFUSED = (
    "cannot {}: this process was forked from one that had used TensorStore, and TensorStore would end it; start worker "
    "processes with 'spawn' (ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')))"
)


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("restored restored", "decode a chunk"),
        ("by_another restored", "decode a chunk"),
        ("restored converted", "open an OCDBT database in "),
    ],
)
def test_a_forked_process_is_refused(words: str, action: str, tmp_path: Path) -> None:
    """The first child, forked when the checkpoint was only opened, reads it."""
    source = write_item(tmp_path / "source", ARRAYS)
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), source, str(tmp_path / "t"), words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    before, after = done.stdout.splitlines()
    assert before == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"
    begin, end = REFUSED.split("{}")
    assert after.startswith(f"{begin}{action}")
    assert end in after
    assert not (tmp_path / "t").exists()
