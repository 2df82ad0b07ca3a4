"""The public functions that learn a map from examples, and check a map against them: ``reshard.rules``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reshard.arguments import changes_of, path_of
from reshard.engine.limits import limits_of
from reshard.errors import PlanError

if TYPE_CHECKING:
    from reshard.arguments import MapLike, Path, Rules
    from reshard.formats.choose import Step
    from reshard.maps.example.infer import Inferred
    from reshard.verification.reports import Verification


def probe(
    source: Path,
    probes: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    select: Rules = (),
    drop: Rules = (),
) -> tuple[str, ...]:
    """Writes copies of a tiny checkpoint in which each value encodes the place of its element; returns their paths.

    ``infer`` learns a script's map from its outputs for all of them. The copies have the names, shapes, dtypes and format of the
    checkpoint; files beside safetensors are copied. Ten million elements take some seven copies.

    Args:
        source: a checkpoint of the model's kind with few layers and small sizes, all of them different.
        probes: the folder of the copies, which must not exist.
        step, item: as for ``inspect``.
        select, drop: choose the tensors to probe, as in ``reshard.ConvertOptions``.

    Raises TargetExistsError if the folder exists; PlanError for dtypes that hold no probe, such as float8, and for checkpoints that
    are not tiny.

    >>> probe("tiny", "probes")  # doctest: +SKIP
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.rules.probe_files import write_probes

    chosen = choose_checkpoint(source, step, item)
    return write_probes(
        chosen, path_of("folder of probes", probes), changes_of(select, drop, None, None)
    )


def infer(
    probes: Path,
    outputs: Path,
    *more: Path,
    sizes: Sequence[Mapping[str, int]] = (),
    pair: bool = False,
) -> Inferred:
    """Learns the map that a script follows, from its outputs for probes.

    A second example with other sizes separates constants from sizes that need names. The map is proved on the examples, bit by bit.
    A choice that they leave open is a question; an output without a rule is a problem, and then the map is not complete.

    Args:
        probes: the folder that ``probe`` wrote.
        outputs: a folder with the script's output for each, under the name of the probe: a checkpoint of any readable format.
        more: probes and outputs of further examples, by turns.
        sizes: sizes by name of each example, such as numbers of its config.json; rules then use these names.
        pair: the two are not probes, but a real checkpoint and the output for it, with at most 200 million elements. Tensors that
            they cannot tell apart, such as norms that are still all ones, are a problem; probes have none. Of arithmetic only roots
            of sizes and ± 1 are found.

    Raises MissingError if an output is missing, PlanError for outputs that do not have the same tensors.

    >>> print(infer("probes", "out").text)  # doctest: +SKIP
    """
    from reshard.maps.example.infer import infer as infer_map
    from reshard.rules.probe_files import read_example, read_pair

    read = read_pair if pair else read_example
    pairs = _pairs(probes, outputs, *more)
    given = [*sizes, *({} for _ in pairs[len(sizes) :])]
    return infer_map([read(*paths, names) for paths, names in zip(pairs, given, strict=True)])


def check(
    map: MapLike,  # noqa: A002  the name of the option
    probes: Path,
    outputs: Path,
    *,
    sizes: Mapping[str, int] | None = None,
    reverse: bool = False,
) -> tuple[Verification, ...]:
    """Compares a map's result for each probe with the script's output, bit by bit.

    It finds the right one of two maps that fit by shape: gate for up, or query for key.

    Args:
        map, sizes, reverse: as in ``reshard.ConvertOptions``.
        probes, outputs: as for ``infer``.

    >>> [found.differences for found in check("llama.yaml", "probes", "out")]  # doctest: +SKIP
    [0, 0, 0, 0]
    """
    from reshard.formats.registry import CheckpointPath
    from reshard.maps.given_map import map_of
    from reshard.rules.probe_files import example_files
    from reshard.verification.verify import verify_checkpoints

    given = map_of(map, sizes, reverse)
    limits = limits_of(None, None, probes, outputs)
    ((folder, made),) = _pairs(probes, outputs)
    return tuple(
        verify_checkpoints(CheckpointPath.at(a), CheckpointPath.at(b), limits, given_map=given)
        for a, b in example_files(folder, made)
    )


def recipes() -> dict[str, str]:
    """The maps that come with this package: purposes by name; ``map=`` takes the names."""
    from reshard.maps.read_map import recipe as read
    from reshard.maps.read_map import recipe_names

    return {name: read(name).about for name in recipe_names()}


def recipe(name: str) -> str:
    """The text of a recipe, which is a map file. PlanError for an unknown name.

    >>> recipe("maxtext-llama3.1").splitlines()[0]
    'about: >-'
    """
    import difflib

    from reshard.maps.read_map import recipe_names, recipe_text

    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? known" if near else "known"
        raise PlanError(f"there is no recipe {name!r}; {hint}: {', '.join(names)}")
    return recipe_text(name)


def _pairs(*folders: Any) -> list[tuple[str, str]]:
    if len(folders) % 2:
        raise PlanError(
            "each folder of probes needs one with what the script made of them; name both"
        )
    named = [path_of("folder of examples", folder) for folder in folders]
    return list(zip(named[::2], named[1::2], strict=True))
