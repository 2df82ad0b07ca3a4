"""Versions whose ids are texts, as ModelExpress has them: ordered by what each stands on, and written as its receiver wants them."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

import reshard
from reshard.cli.app import run
from tests.delta_layout import apply_delta, bytes_of, changed, stored, write_delta, write_full
from tests.deltas.weights import save
from tests.emulators.buckets import Bucket

LIKE = {"a": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}
INDEX = "model.safetensors.index.json"


def publish(folder: Path, links: list[tuple[str, str]], full: str = "base-a") -> list[dict[str, bytes]]:  # fmt: skip
    """A full version, and a delta for each pair of an id and what it stands on; the state of each."""
    states = {full: bytes_of(LIKE)}
    write_full(folder / full, states[full], LIKE)
    for seed, (version, base) in enumerate(links):
        states[version] = changed(states[base], 0.02, seed)
        write_delta(folder, version, states[base], states[version], checksum="adler32", base=base)
    return list(states.values())


def receive(place: Path, version: str, base: str, old: dict[str, bytes]) -> dict[str, bytes]:
    """The state after a delta, with every check of ModelExpress' receiver of version 0.7."""
    index = json.loads((place / INDEX).read_bytes())
    assert index["metadata"] == {
        "version": version,
        "base_version": base,
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "adler32",
    }
    made = dict(old)
    for file in set(index["weight_map"].values()):
        data = (place / file).read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:start])
        sums, names = header.pop("__metadata__"), {n for n, f in index["weight_map"].items() if f == file}  # fmt: skip
        assert header.keys() == sums.keys() == names
        at = 0
        for name, one in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = one["data_offsets"]
            assert (begin, one["dtype"], one["shape"]) == (at, "U8", [end - begin])
            frame, at = data[start + begin : start + end], end
            assert frame.startswith(b"\x28\xb5\x2f\xfd")
            delta = zstandard.ZstdDecompressor().decompress(frame, max_output_size=len(old[name]))
            made[name] = bytes(a ^ b for a, b in zip(old[name], delta, strict=True))
            assert f"{zlib.adler32(made[name]):08x}" == sums[name]
    return made


def test_a_chain_is_ordered_by_its_links(tmp_path: Path) -> None:
    *_, last = publish(tmp_path, [("zeta", "base-a"), ("alpha", "zeta"), ("m10", "alpha")])
    given = [tmp_path / name for name in ("alpha", "m10", "zeta")]
    reshard.apply(tmp_path / "base-a", given, tmp_path / "out")
    assert stored(tmp_path / "out") == last
    assert json.loads((tmp_path / "out" / INDEX).read_bytes())["metadata"]["version"] == "m10"
    assert reshard.verify(tmp_path / "base-a", deltas=given).differences == 0
    found = reshard.inspect_versions(tmp_path)
    assert [(one.version, one.kind, one.is_needed) for one in found] == [
        ("base-a", "full", True),
        ("zeta", "delta", True),
        ("alpha", "delta", True),
        ("m10", "delta", True),
    ]


def test_what_was_applied_says_its_version(tmp_path: Path) -> None:
    *_, last = publish(tmp_path, [("zeta", "base-a"), ("alpha", "zeta")])
    reshard.apply(tmp_path / "base-a", [tmp_path / "zeta"], tmp_path / "out")
    reshard.apply(tmp_path / "out", [tmp_path / "alpha"], tmp_path / "end")
    assert stored(tmp_path / "end") == last


ONCE = "is given twice; give each version once, and none that the base has already"


@pytest.mark.parametrize(
    ("links", "base", "text"),
    [
        ([("x", "base-a"), ("y", "base-a")], "base-a", "{0}/x and {0}/y both change the version base-a; give the one that leads to the version that is wanted, and what stands on it"),
        ([("x", "base-a"), ("y", "x")], "x", "{0}/x: the version x " + ONCE),
        ([("x", "base-a"), ("z", "x")], "z", "{0}/z: the version z " + ONCE),
        ([("x", "base-a")], "elsewhere", "{0}/x changes the version base-a and lists no checksums of the tensors that it does not change, and {0}/elsewhere records no version; give every delta from the version that it is on; or, if it is the version base-a, give its folder that name (base-a)"),
    ],
)  # fmt: skip
def test_what_is_no_chain_is_refused(
    links: list[tuple[str, str]], base: str, text: str, tmp_path: Path
) -> None:
    publish(tmp_path, links)
    if not (tmp_path / base).exists():
        shutil.copytree(tmp_path / "base-a", tmp_path / base)
    elif base != "base-a":  # a full version of the name of a delta
        shutil.copytree(tmp_path / "base-a", tmp_path / "full" / base)
        base = f"full/{base}"
    with pytest.raises(reshard.PlanError) as error:
        reshard.apply(tmp_path / base, [tmp_path / version for version, _ in links], tmp_path / "o")
    assert str(error.value) == text.format(tmp_path)


def test_a_circle_is_refused_and_shown(tmp_path: Path) -> None:
    state = bytes_of(LIKE)
    for version, base in (("x", "y"), ("y", "x")):
        write_delta(tmp_path, version, state, changed(state, 0.1, 1), base=base)
    write_full(tmp_path / "full", state, LIKE)
    with pytest.raises(reshard.PlanError) as error:
        reshard.apply(tmp_path / "full", [tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    assert str(error.value) == (
        f"{tmp_path / 'x'} makes the version x of y, and the other deltas make that of it again: the chain is a circle; give the base the name of "
        "its version, and leave out the delta that makes it"
    )
    found = reshard.inspect_versions(tmp_path)
    assert {(one.name, one.kind, one.problem) for one in found} == {
        ("x", "unusable", "the versions x and y stand on one another"),
        ("y", "unusable", "the versions x and y stand on one another"),
    }


def test_a_name_that_is_a_path_is_no_version(tmp_path: Path) -> None:
    state = bytes_of(LIKE)
    place = write_delta(tmp_path, "v1", state, changed(state, 0.1, 1), base="../v0")
    with pytest.raises(reshard.FormatError, match=r"metadata.base_version is '../v0'; expected the id of a version"):  # fmt: skip
        reshard.apply(write_full(tmp_path / "v0", state, LIKE), [place], tmp_path / "out")
    (one,) = reshard.inspect_versions(place)
    assert one.kind == "unusable"


@pytest.mark.parametrize(("keep", "left"), [(1, ["v2", "v3"]), (3, ["v0", "v1", "v2", "v3"])])
def test_what_the_newest_does_not_need_goes(keep: int, left: list[str], tmp_path: Path) -> None:
    states = publish(tmp_path, [("v1", "v0")], "v0")
    write_full(tmp_path / "v2", states[1], LIKE)
    write_delta(tmp_path, "v3", states[1], states[0], base="v2")
    (tmp_path / "notes").mkdir()
    reshard.clean_versions(tmp_path, keep)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", *left]


def test_two_chains_that_no_number_orders_stay(tmp_path: Path) -> None:
    publish(tmp_path, [("x", "base-a"), ("y", "base-a")])
    assert all(one.is_needed for one in reshard.inspect_versions(tmp_path))
    with pytest.raises(reshard.PlanError) as error:
        reshard.clean_versions(tmp_path, 1)
    assert str(error.value) == (
        f"which version in {tmp_path} is the newest is not known: x and y end different chains, and no numbers in their ids order them; nothing was "
        "removed; move the chains that are not wanted to other folders, and run again"
    )


def test_modelexpress_takes_what_is_written_for_it(tmp_path: Path) -> None:
    states = [bytes_of(LIKE)]
    save(tmp_path / "v0", LIKE)
    for number in (1, 2):
        step = {n: a.copy() for n, a in LIKE.items()}
        step["a"][number] += number
        save(tmp_path / f"step{number}", step)
        old = tmp_path / ("v0" if number == 1 else "step1")
        told = reshard.delta(
            old, tmp_path / f"step{number}", tmp_path / f"v{number}", receiver="modelexpress",
            base_version=None if number == 1 else "v1", checksum=None if number == 1 else "adler32",
        )  # fmt: skip
        assert (told.version, told.base_version, told.checksum) == (f"v{number}", f"v{number - 1}", "adler32")  # fmt: skip
        states.append(receive(tmp_path / f"v{number}", f"v{number}", f"v{number - 1}", states[-1]))
        assert states[-1] == bytes_of(step) == apply_delta(tmp_path / f"v{number}", states[-2])
    assert reshard.delta(tmp_path / "step1", tmp_path / "step2", tmp_path / "v2", receiver="modelexpress", base_version="v1", again=True).changed  # fmt: skip
    with pytest.raises(reshard.VerificationError, match=r"the old checkpoint gives the digest \w{8} of 'a', but .*v2 records \w{8} for the version v2"):  # fmt: skip
        reshard.delta(tmp_path / "step1", tmp_path / "v0", tmp_path / "v3", receiver="modelexpress", base_version="v2")  # fmt: skip


@pytest.mark.parametrize(
    ("target", "old", "base", "text"),
    [
        ("weight_v000001", "v0", None, "has the name of a numbered version, and readers take the number for its id, but ModelExpress the name; give another name, such as v7"),
        ("v0x/v1", "v0", None, "does not say which version it is: expected the id in its index, or a folder beside the target; give its id (base_version)"),
        ("v0x/v1", "v0", "../v0", "'../v0' cannot be the id of a version: expected the name of a folder, of 200 bytes at most, that does not begin with a dot; give another name, such as v7"),
        ("v0x/v1", "v0", "v1", "and the version on which it stands would both be v1; name the target by another version"),
    ],
)  # fmt: skip
def test_ids_that_cannot_be(
    target: str, old: str, base: str | None, text: str, tmp_path: Path
) -> None:
    save(tmp_path / "v0", LIKE)
    with pytest.raises(reshard.PlanError) as error:
        reshard.delta(tmp_path / old, tmp_path / "v0", tmp_path / target, receiver="modelexpress", base_version=base)  # fmt: skip
    assert str(error.value).endswith(text)


def test_the_commands_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "v0", LIKE)
    save(tmp_path / "step", {**LIKE, "a": LIKE["a"] + 1})
    old, new, made = (str(tmp_path / name) for name in ("v0", "step", "v1"))
    assert run(["delta", old, new, made, "--for", "modelexpress", "--base-version", "v0"]) == 0
    assert "version v1 on v0" in " ".join(capsys.readouterr().out.split())
    assert run(["apply", old, made, str(tmp_path / "out"), "--quiet"]) == 0
    assert stored(tmp_path / "out") == stored(tmp_path / "step")
    assert run(["verify", old, "--delta", made]) == 0
    assert run(["clean", str(tmp_path), "--versions", "1"]) == 0
    assert run(["delta", new, old, f"{tmp_path}/x/v2", "--for", "modelexpress"]) == 1
    assert "give its id (--base-version)" in capsys.readouterr().err


def test_a_bucket_holds_them(s3_bucket: Bucket, tmp_path: Path) -> None:
    save(tmp_path / "v0", LIKE)
    save(tmp_path / "step", {**LIKE, "b": LIKE["b"] + 1})
    published = f"{s3_bucket.url}/published"
    reshard.convert(tmp_path / "v0", f"{published}/v0")
    reshard.delta(f"{published}/v0", tmp_path / "step", f"{published}/v1", receiver="modelexpress")
    assert [(v.version, v.kind) for v in reshard.inspect_versions(published)] == [("v0", "full"), ("v1", "delta")]  # fmt: skip
    reshard.apply(f"{published}/v0", [f"{published}/v1"], tmp_path / "out")
    assert stored(tmp_path / "out") == stored(tmp_path / "step")
