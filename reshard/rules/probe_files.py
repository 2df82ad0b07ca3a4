"""The files of examples: a tiny checkpoint as arrays, probes as checkpoints like it, and a script's output for each."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from reshard.api.conversion import convert
from reshard.engine.decode.box_plan import StoredBox
from reshard.engine.read_boxes import fill_array
from reshard.errors import MissingError, PlanError, TargetExistsError
from reshard.formats.base import Reader
from reshard.formats.contents import PathKey
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.target_files import FilesOf
from reshard.geometry.dtypes import PACKED, element_dtype, numpy_dtype
from reshard.layout.changes import Changes
from reshard.maps.example.infer import Example
from reshard.maps.example.probes import MOST_ELEMENTS, MOST_OF_A_PAIR, make_probes
from reshard.planning.rules import rewrites
from reshard.saving.save import save
from reshard.storage.host import default_max_memory
from reshard.storage.local.files import make_folder, storage_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_WEIGHTS = (".safetensors", ".safetensors.index.json")


def write_probes(chosen: CheckpointPath, folder: str, changes: Changes) -> tuple[str, ...]:
    """Writes the probes of a checkpoint into a new folder; returns their paths, in the order of the runs."""
    place = Path(folder)
    if place.exists():
        raise TargetExistsError(
            f"the folder of probes {folder!r} exists; choose another, or remove it"
        )
    reader = open_reader(chosen)
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    names = [leaf.name for leaf in reader.leaves]
    kept = [r.source for r in rewrites(changes, names, specs) if r.source in specs]
    arrays = _read(reader, kept)
    source = Path(chosen.path)
    suffix = ".safetensors" if source.suffix == ".safetensors" and source.is_file() else ""
    runs = make_probes(arrays)
    make_folder(folder)
    paths = []
    for number, run in enumerate(runs):
        path = place / f"run{number}{suffix}"
        _write(reader, run, path)
        if source.is_dir() and reader.format == "safetensors":
            _copy_beside(source, path)
        paths.append(str(path))
    return tuple(paths)


def _read(
    reader: Reader, names: Sequence[str], most: int = MOST_ELEMENTS, kind: str = "tiny models"
) -> dict[str, Array]:
    """Tensors as arrays. Raises PlanError if they have more elements than an example of this kind may have."""
    import numpy as np

    total = sum(math.prod(reader.tensors[name].spec.shape) for name in names)
    if total > most:
        raise PlanError(
            f"{reader.uri!r} has {total:,} elements, and examples are of {kind} with at most {most:,}; make one with fewer layers and "
            "smaller sizes"
        )
    found = {}
    for name in names:
        stored = reader.tensors[name]
        spec = stored.spec
        out = np.empty(spec.shape, element_dtype(spec.dtype, is_cast=False))
        if out.size:
            fill_array(StoredBox.whole(stored), reader, out, default_max_memory())
        found[name] = out if spec.dtype in PACKED else out.view(numpy_dtype(spec.dtype))
    return found


def _write(reader: Reader, run: Mapping[str, Array], path: Path) -> None:
    """Writes a probe in the format of its source."""
    paths = {leaf.name: leaf.path for leaf in reader.leaves if leaf.name in run}
    tree = _tree([(paths[name], array) for name, array in run.items()])
    if reader.format == "orbax":
        save(str(path), tree)
        return
    with TemporaryDirectory(dir=path.parent) as temporary:
        save(f"{temporary}/probe", tree)
        files: FilesOf | None = "one" if path.suffix else None
        convert(f"{temporary}/probe", str(path), to="safetensors", files=files)


def _tree(leaves: Sequence[tuple[tuple[PathKey, ...], Any]]) -> Any:
    """The tree of these paths, with its lists."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    below: dict[PathKey, list[tuple[tuple[PathKey, ...], Any]]] = {}
    for path, value in leaves:
        below.setdefault(path[0], []).append((path[1:], value))
    if all(key.is_sequence for key in below):
        ordered = sorted(below.items(), key=lambda item: int(item[0].key))
        return [_tree(inner) for _, inner in ordered]
    return {key.key: _tree(inner) for key, inner in below.items()}


def _copy_beside(source: Path, probe: Path) -> None:
    """Copies files that scripts expect beside the weights: config.json, tokenizer files."""
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS) and not (probe / file.name).exists():
            with storage_errors("copy", file):
                shutil.copyfile(file, probe / file.name)


def read_example(probes: str, outputs: str, sizes: Mapping[str, int]) -> Example:
    """The arrays of probes and of a script's outputs. Raises PlanError if an output has other tensors than the first."""
    sources, targets = [], []
    for probe, output in example_files(probes, outputs):
        sources.append(_arrays(probe))
        targets.append(_arrays(output))
        if targets[0].keys() != targets[-1].keys():
            unlike = min(targets[0].keys() ^ targets[-1].keys())
            raise PlanError(
                f"{output!r} has other tensors than the output of the first probe, such as {unlike!r}; the script must make the same of each"
            )
        _check_alike(output, targets[0], targets[-1])
    return Example(sources, targets, sizes)


def read_pair(source: str, target: str, sizes: Mapping[str, int]) -> Example:
    """The arrays of two real checkpoints: a source and the output made of it."""
    arrays = [_arrays(path, MOST_OF_A_PAIR, "pairs of checkpoints") for path in (source, target)]
    return Example(arrays[:1], arrays[1:], sizes)


def _check_alike(path: str, first: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    for name, array in other.items():
        if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
            raise PlanError(
                f"{name!r} in {path!r} has another shape or dtype than in the output of the first probe; the script must make the same of each"
            )


def _arrays(path: str, *most: Any) -> dict[str, Array]:
    reader = open_reader(CheckpointPath.at(path))
    return _read(reader, list(reader.tensors), *most)


def example_files(probes: str, outputs: str) -> list[tuple[str, str]]:
    """Each probe and its output, in the order of the runs. Raises MissingError if one is missing."""
    found = sorted(
        (path for path in Path(probes).glob("run*") if _number(path) is not None),
        key=lambda path: _number(path) or 0,
    )
    least = 4  # the first, two that are shifted, and the proof
    if len(found) < least:
        raise MissingError(
            f"{probes!r} has {len(found)} probes, and at least {least} are made; name the folder that reshard rules probe wrote"
        )
    return [(str(path), _output(path, Path(outputs))) for path in found]


def _number(path: Path) -> int | None:
    text = path.name.removeprefix("run").removesuffix(".safetensors")
    return int(text) if text.isdecimal() and len(text) < 6 else None


def _output(probe: Path, outputs: Path) -> str:
    stem = probe.name.removesuffix(".safetensors")
    for name in (probe.name, stem, f"{stem}.safetensors"):
        if (outputs / name).exists():
            return str(outputs / name)
    raise MissingError(
        f"{str(outputs)!r} has no {probe.name!r}; put what the script makes of {str(probe)!r} there, under that name"
    )
