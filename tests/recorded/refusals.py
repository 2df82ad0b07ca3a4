"""Bad input and states that are refused, each with its error text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import reshard
from tests.recorded.sources import COLUMNS
from tests.recorded.ways import (
    LIMITS,
    ONE_WORKER,
    Recorded,
    World,
    command,
    refusal,
    single_tasks,
    stopping,
)

Refused = Callable[[World], list[str]]


def _convert(source: str, name: str = "refused", **options: Any) -> Refused:
    how = {**LIMITS, **options}
    return lambda world: refusal(
        world, lambda: reshard.convert(world.source(source), world.target(name), **how)
    )


def _said(*words: str, source: str = "raw") -> Refused:
    """By the command; its source is ``SRC``."""
    return lambda world: command(
        world, *(world.source(source) if word == "SRC" else word for word in words)
    )


def _made(make: Callable[[Path], object]) -> Refused:
    """A conversion of what ``make`` makes."""

    def refused(world: World) -> list[str]:
        path = world.folder / "made"
        make(path)
        found = refusal(world, lambda: reshard.convert("made", "out/refused", **LIMITS))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return found

    return refused


def _text_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("no checkpoint")


def _broken_metadata(path: Path) -> None:
    shutil.copytree("raw", path)
    (path / "_METADATA").write_text("{")


def _newer_slices(path: Path) -> None:
    shutil.copytree("raw", path)
    (path / "slices.json").write_text(json.dumps({"format": "reshard.slices", "version": 99}))


def _broken_slices(path: Path) -> None:
    shutil.copytree("saved", path)
    record = path / "slices.json"
    record.write_text(record.read_text().replace('"rows"', '"rowz"', 1))


def _unfinished(path: Path) -> None:
    """Without Orbax's marks of a finished checkpoint."""
    shutil.copytree("raw", path)
    for name in ("_CHECKPOINT_METADATA", "_METADATA"):
        (path / name).unlink()


def _short_file(path: Path) -> None:
    path.write_bytes(Path("one.safetensors").read_bytes()[:-1000])


def _long_header(path: Path) -> None:
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def _other_options(world: World) -> list[str]:
    """A run with other options than the one that was stopped."""
    source, target = world.source("raw"), world.target("refused-options")
    how = {**LIMITS, **ONE_WORKER}
    with single_tasks():
        stop = stopping(4)
        refusal(world, lambda: reshard.convert(source, target, progress=stop, **how))
        return refusal(world, lambda: reshard.convert(source, target, layout=COLUMNS, **how))


def _other_part(world: World) -> list[str]:
    """A whole conversion where parts were begun, and a part of another count."""
    source, target = world.source("raw"), world.target("refused-parts")
    reshard.convert_part(source, target, part="1/2", **LIMITS)
    return [
        *refusal(world, lambda: reshard.convert(source, target, **LIMITS)),
        *refusal(world, lambda: reshard.convert_part(source, target, part="1/3", **LIMITS)),
        *refusal(world, lambda: reshard.commit(target)),
    ]


def _raising(world: World) -> list[str]:
    """An error of the caller's, which keeps what is done."""

    def fail(progress: reshard.Progress) -> None:
        if progress.tasks_done >= 4:
            raise ValueError("the caller's own")

    source, target = world.source("raw"), world.target("refused-raising")
    how = {**LIMITS, **ONE_WORKER, "progress": fail}
    with single_tasks():
        return refusal(world, lambda: reshard.convert(source, target, **how))


def _existing(world: World) -> list[str]:
    return command(world, "convert", world.source("raw"), world.source("zarr2"))


def _wrong_layout(rules: list[Any], axes: tuple[str, ...] = ("x",)) -> dict[str, Any]:
    return {"mesh": {"axes": list(axes), "shape": [4] * len(axes)}, "rules": rules}


_CASES: Mapping[str, Refused] = {
    "no source": _said("convert", "nothing", "out/refused"),
    "a run": _said("convert", "SRC", "out/refused", source="run"),
    "no such step": _said("convert", "SRC", "out/refused", "--step", "5", source="run"),
    "no such item": _said("convert", "SRC", "out/refused", "--item", "other", source="run/12"),
    "existing target": _existing,
    "target in the source": _said("convert", "SRC", "raw/inside"),
    "no layout file": _said("plan", "SRC", "--layout", "nothing.yaml"),
    "bad mesh": _said("plan", "SRC", "--mesh", "x=0"),
    "bad rule": _said("convert", "SRC", "out/refused", "--rename", "a"),
    "two names": _said("convert", "SRC", "out/refused", "--rename", "^(rows|cols)$=w"),
    "no target": _said("convert", "SRC"),
    "files of Orbax": _said("convert", "SRC", "out/refused", "--files", "one", "--to", "orbax"),
    "server and part": _said("convert", "SRC", "out/x", "--part", "1/2", "--server", "http://h"),
    "part out of range": _said("convert", "SRC", "out/refused", "--part", "3/2"),
    "commit of nothing": _said("commit", "out/nothing"),
    "verify of others": _said("verify", "raw", "SRC", source="state"),
    "diff of others": _said("diff", "raw", "SRC", source="state"),
    "damage found by verify": _said("verify", "SRC", source="damaged"),
    "a file in a bucket": _said("convert", "SRC", "gs://recorded/refused.safetensors"),
    "a database in a bucket": _said("convert", "SRC", "gs://recorded/refused", "--ocdbt"),
    "parts of a database": _said("convert", "SRC", "out/refused", "--ocdbt", "--part", "1/2"),
    "no bucket": _said("inspect", "s3://no-such-bucket/raw"),
    "damaged chunk": _convert("damaged"),
    "missing chunk": _convert("incomplete", missing_chunks="refuse"),
    "no tensor left": _convert("raw", drop=["."]),
    "bad pattern": _convert("raw", select=["(?=a)"]),
    "unknown dtype": _convert("raw", cast=[("rows", "float31")]),
    "cast of a key": _convert("state", cast=[("^key$", "float32")]),
    "unknown codec": _convert("raw", compression="lzma"),
    "unknown format": _convert("raw", to="hdf5"),
    "little memory": _convert("raw", max_memory="100KiB"),
    "indivisible": _convert("state", layout=_wrong_layout([{"match": "numpy", "axes": ["x"]}])),
    "unknown axis": _convert("raw", layout=_wrong_layout([{"match": "rows", "axes": ["y"]}])),
    "many axes": _convert("raw", layout=_wrong_layout([{"match": "small", "axes": [None, "x"]}])),
    "missing axes": _convert("raw", mesh="data=4"),
    "texts in safetensors": _convert("state", to="safetensors"),
    "a mesh for rank files": _convert("old/o041/ocdbt", to="safetensors", files="ranks"),
    "a folder of text": _made(_text_folder),
    "metadata that ends early": _made(_broken_metadata),
    "slice metadata of a newer version": _made(_newer_slices),
    "slice metadata with a flipped bit": _made(_broken_slices),
    "a checkpoint without metadata": _made(_unfinished),
    "a safetensors file that ends early": _made(_short_file),
    "a safetensors header that is too long": _made(_long_header),
    "other options than the stopped run": _other_options,
    "parts that were begun": _other_part,
    "an error of the caller's": _raising,
}


def refusals(world: World) -> Recorded:
    """Every error text by its name."""
    for name in ("raw", "saved", "one.safetensors"):
        world.source(name)
    return {name: refused(world) for name, refused in _CASES.items()}
