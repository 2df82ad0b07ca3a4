"""What is refused of an HDF5 file, by its text; damage anywhere is an error of one line or no change, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import obstore
import pytest
from h5py import h5t

import reshard
from reshard.errors import CorruptError, FormatError, MissingError, NotACheckpointError
from reshard.formats.keras import datasets, files
from reshard.formats.keras.files import opened_hdf5
from reshard.formats.registry import open_reader
from reshard.storage import calls
from reshard.storage.location import locate
from tests.emulators.buckets import Bucket
from tests.formats.keras.small import DATA, put, refusal


def one(**options: Any) -> Callable[[h5py.File], None]:
    """A dataset ``a/w`` made with these options."""
    return lambda file: file.create_dataset("a/w", **{"data": DATA, **options}) and None


def link(kind: Any) -> Callable[[h5py.File], None]:
    def make(file: h5py.File) -> None:
        file["a/v"] = DATA
        file["a/w"] = kind

    return make


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((6, 4), np.float32)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (6, 4))
    file.create_virtual_dataset("a/w", layout)


def group_twice(file: h5py.File) -> None:
    file["a/w"] = DATA
    file["a/b"] = file["a"]


def unwritten(file: h5py.File) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((6, 4))
    group = file.create_group("a")
    h5py.h5d.create(group.id, b"w", h5py.h5t.IEEE_F32LE, space, made)


def compact(file: h5py.File) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((6, 4))
    group = file.create_group("a")
    h5py.h5d.create(group.id, b"w", h5py.h5t.IEEE_F32LE, space, made)


def opaque(dtype: Any) -> Callable[[h5py.File], None]:
    def make(file: h5py.File) -> None:
        made = file.create_dataset("a/w", data=np.zeros(4, "V2"))
        if dtype is not None:
            made.attrs["dtype"] = dtype

    return make


def other_name(file: h5py.File) -> None:
    file.id.links.create_soft(b"\xfe", b"x")


def typed(kind: Any, shape: tuple[int, ...] = (2,)) -> Callable[[h5py.File], None]:
    """A dataset ``a/w`` of a type of HDF5."""

    def make(file: h5py.File) -> None:
        group = file.create_group("a")
        h5py.h5d.create(group.id, b"w", kind, h5py.h5s.create_simple(shape))

    return make


def short_integers() -> Any:
    kind = h5t.STD_I32LE.copy()
    kind.set_precision(20)
    return kind


def other_floats() -> Any:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_ebias(100)
    return kind


def enumeration() -> Any:
    kind = h5t.enum_create(h5t.STD_I8LE)
    kind.enum_insert(b"A", 0)
    return kind


REPACK = "; rewrite the file with 'h5repack -l CONTI -f NONE OLD NEW', or load it with Keras and save it again"


AGAIN = "; load the file with Keras or h5py and save its arrays again"


NUMBERS = f", and only numbers are read{AGAIN}"


OPAQUE = f", which does not say what they are{AGAIN}"


CASES: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "an external link": (link(h5py.ExternalLink("/etc/passwd", "/x")), "'a/w' is a link to '/x' in the file '/etc/passwd', and links are not followed; copy what it names into one file"),
    "a soft link": (link(h5py.SoftLink("/a/v")), "'a/w' is a soft link to '/a/v', and links are not followed; store the dataset itself"),
    "a virtual dataset": (virtual, f"'a/w' is a virtual dataset, made of others, perhaps in other files{REPACK}"),
    "external storage": (lambda file: file.create_dataset("a/w", DATA.shape, DATA.dtype, external=[("/etc/passwd", 0, 96)]) and None, f"'a/w' has its elements in another file (external storage){REPACK}"),
    "compact": (compact, f"'a/w' is stored in its header (compact){REPACK}"),
    "not written": (unwritten, "'a/w' was made without any elements being written; write them, or leave it out when the file is made"),
    "big-endian": (one(data=DATA.astype(">f4")), f"'a/w' is big-endian, which is not read{AGAIN}"),
    "big-endian complex": (one(data=DATA.astype(">c8")), f"'a/w' is big-endian, which is not read{AGAIN}"),
    "strings": (one(data=np.array([b"a", b"b"])), f"'a/w' holds strings{NUMBERS}"),
    "strings of any length": (one(data=["a", "b"]), f"'a/w' holds strings{NUMBERS}"),
    "lists": (lambda file: file.create_dataset("a/w", (2,), h5py.vlen_dtype(np.int32)) and None, f"'a/w' holds elements of different length{NUMBERS}"),
    "records": (one(data=np.zeros(3, [("x", "f4"), ("y", "i4")])), f"'a/w' holds records{NUMBERS}"),
    "references": (typed(h5t.STD_REF_OBJ), f"'a/w' holds references{NUMBERS}"),
    "arrays": (typed(h5t.array_create(h5t.IEEE_F32LE, (3,))), f"'a/w' holds arrays as elements{NUMBERS}"),
    "bits": (typed(h5t.STD_B8LE), f"'a/w' holds bit fields{NUMBERS}"),
    "times": (typed(h5t.UNIX_D32LE), f"'a/w' holds times{NUMBERS}"),
    "an enumeration": (typed(enumeration()), f"'a/w' holds an enumeration{NUMBERS}"),
    "short integers": (typed(short_integers()), f"'a/w' holds integers of 4 bytes in an unusual form{NUMBERS}"),
    "other floats": (typed(other_floats()), f"'a/w' holds floats of 4 bytes in an unusual form{NUMBERS}"),
    "no shape": (one(data=h5py.Empty("f4")), "'a/w' is empty without a shape (h5py.Empty), which is not read"),
    "a datatype": (lambda file: file.__setitem__("a/w", np.dtype("f4")), "'a/w' is a named datatype, which is not read"),
    "a group twice": (group_twice, "the group 'a/b' is in the file under another name too, which is not read"),
    "opaque": (opaque(None), f"'a/w' has opaque elements, of 2 bytes and with no attribute 'dtype'{OPAQUE}"),
    "opaque of another size": (opaque(np.bytes_("int4")), f"'a/w' has opaque elements, of 2 bytes and with the attribute 'dtype' 'int4'{OPAQUE}"),
    "a name of other bytes": (other_name, "the name b'\\xfe' is not UTF-8"),
    "257 names deep": (lambda file: file.create_group("/".join("a" * 300)) and None, f"the path '{'a/' * 40}'… has 513 characters and 257 names, more than are read"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, tmp_path: Path) -> None:
    make, said = CASES[case]
    file = tmp_path / "model.weights.h5"
    with h5py.File(file, "w") as made:
        make(made)
    assert refusal(file) == f"FILE: {said}"


def test_a_link_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py makes none."""
    with h5py.File(tmp_path / "x.h5", "w") as made:
        link(h5py.SoftLink("/a/v"))(made)
    monkeypatch.setattr(h5py.h5l, "TYPE_SOFT", 200)
    assert refusal(tmp_path / "x.h5") == (
        "FILE: 'a/w' is a link of an unknown kind, and links are not followed"
    )


@pytest.mark.parametrize(
    ("module", "limit", "most", "said"),
    [
        (datasets, "MAX_LEAVES", 0, "FILE has more groups and datasets than are read"),
        (datasets, "MAX_ALL_NAMES_CHARACTERS", 40, "FILE has more groups and datasets than are read"),
        (datasets, "MAX_RANK", 1, "FILE: 'layers/dense/vars/0' has 2 dimensions; at most 1 are read"),
        (datasets, "MAX_TENSOR_BYTES", 95, "FILE: 'layers/dense/vars/0' of float32 [6, 4] is larger than any tensor that is read"),
        (files, "MAX_HDF5_BYTES", 500, "FILE has more than 500 bytes of metadata, or repeats them; it is damaged, or no file of weights"),
    ],
)  # fmt: skip
def test_limits(
    module: ModuleType,
    limit: str,
    most: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, limit, most)
    assert refusal(put(tmp_path)) == said


def test_what_is_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "model.weights.h5").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CorruptError, match="is damaged, or no HDF5 file: h5py says"):
        reshard.inspect(tmp_path / "model.weights.h5")
    (tmp_path / "model.h5").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(NotACheckpointError, match="is not a checkpoint of a known format"):
        reshard.inspect(tmp_path / "model.h5")
    with pytest.raises(MissingError, match=r"none\.weights\.h5 does not exist"):
        reshard.inspect(tmp_path / "none.weights.h5")
    with pytest.raises(FormatError) as caught, opened_hdf5(locate(str(tmp_path))):
        pass
    assert str(caught.value) == (
        f"{tmp_path} is no file; expected an HDF5 file, such as Keras' .weights.h5"
    )


def test_an_object_that_becomes_shorter_while_it_is_read(
    tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(s3_bucket.store(), "x.weights.h5", put(tmp_path).read_bytes(), use_multipart=False)
    monkeypatch.setattr(calls, "read_part", lambda *_: b"")
    url = f"{s3_bucket.url}/x.weights.h5"
    with pytest.raises(CorruptError) as caught:
        reshard.inspect(url)
    assert str(caught.value) == f"{url} became shorter while it was read; try again"


def test_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    file = put(tmp_path)
    with pytest.raises(FormatError) as caught:
        open_reader(str(file)).locate("v", (0, 0))
    assert str(caught.value) == f"{file} has no tensor named 'v'"


def test_a_record_without_content(tmp_path: Path) -> None:
    file = put(tmp_path)
    with h5py.File(file, "r+") as made:
        made["slices.json"] = np.zeros(0, np.uint8)
    assert refusal(file) == "FILE: 'slices.json' has 0 bytes, which is no record"
