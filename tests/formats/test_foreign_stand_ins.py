"""Git LFS pointers and web pages in place of the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import FormatError
from tests.orbax_trees import save_pytree

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 4976698672\n"
)
PAGES = (
    b"<!DOCTYPE html><html>Access restricted</html>",
    b"\n  <HTML lang=en>\n" + b"x" * 100,
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A folder with Orbax checkpoints and one of Hugging Face shards."""
    tree = {"a": np.arange(6).reshape(2, 3)}
    save_pytree(tmp_path / "plain", tree, use_ocdbt=False)
    save_pytree(tmp_path / "database", tree)
    reshard.convert(tmp_path / "plain", tmp_path / "recorded")
    (tmp_path / "hf").mkdir()
    save_file({"a": np.arange(3)}, tmp_path / "hf" / "model-00001-of-00001.safetensors")
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}'
    )
    return tmp_path


@pytest.mark.parametrize(
    "file",
    [
        "hf/model-00001-of-00001.safetensors",
        "hf/model.safetensors.index.json",
        "plain/_METADATA",
        "plain/_CHECKPOINT_METADATA",
        "plain/a/.zarray",
        "recorded/slices.json",
        "database/manifest.ocdbt",
    ],
)
def test_what_stands_in_for_a_file_is_named(checkpoints: Path, file: str) -> None:
    path = checkpoints / file
    for data, message in [
        (POINTER, "is a Git LFS pointer, a small text in place of the file: it was cloned without git-lfs; run 'git lfs install' "
         "and 'git lfs pull' in the clone, or download the file itself"),
        *[(page, "is a web page (HTML or XML) in place of the file, such as a login page or an error of the server; download the "
           "file again, with access to it") for page in PAGES],
    ]:  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(FormatError) as error:
            reshard.inspect(checkpoints / file.partition("/")[0])
        assert message in str(error.value)
        assert path.name in str(error.value)
