"""``reshard rules``: maps that are learned from examples; and ``recipes``: those that come with reshard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reshard import rules as by_example
from reshard.cli.console import most_rows, print_all, print_json, show_view, warn
from reshard.cli.failures import DIFFERENT
from reshard.cli.groups import StepAndItem
from reshard.cli.options import Misuse, Texts, sizes, step_of
from reshard.cli.target_options import declared


def rules() -> None:
    """Learn a map from a script that you trust, which converts checkpoints of the same kind.

    probe makes copies of a tiny checkpoint whose values say where each element is from. The script is run on each of them, and infer
    reads the map off what it made. check tells whether a map does the same as the script.

    Examples:
        $ reshard rules probe tiny probes
        $ mkdir out; for p in probes/*; do ./their_script $p out/$(basename $p); done
        $ reshard rules infer probes out > llama.yaml
        $ reshard rules check llama.yaml probes out
        $ reshard rules infer probes out --json | jq '.questions[]'
    """


def probe(
    tiny: str,
    probes: str,
    *,
    chosen: StepAndItem,
    select: Annotated[Texts, declared("select")] = None,
    drop: Annotated[Texts, declared("drop")] = None,
    as_json: bool = False,
) -> None:
    """Make copies of a tiny checkpoint whose values say where each element is from.

    They have the names, shapes, dtypes and format of TINY; files beside safetensors, such as config.json, are copied.

    Options:
        TINY: A checkpoint of the model's kind with few layers and small sizes, each of which differs from the others.
        PROBES: A new folder, which gets a probe for each run.

    Examples:
        $ reshard rules probe tiny probes
        $ reshard rules probe tiny probes --drop '^opt_state/'
    """
    options: dict[str, Any] = {"select": select or (), "drop": drop or ()}
    made = by_example.probe(tiny, probes, step=step_of(chosen.step), item=chosen.item, **options)
    if as_json:
        print_json({"command": "rules probe", "probes": list(made)})
        return
    for path in made:
        typer.echo(path)


def infer(
    folders: list[str],
    *,
    pair: bool = False,
    config: Texts = None,
    size: Texts = None,
    as_json: bool = False,
) -> None:
    """Write the map that a script follows to stdout, read off what it made of probes.

    The map is proved on the examples, bit by bit. What one example leaves open is written as comments, and to stderr: the head count,
    or two sizes that are equal. A second model with other sizes answers most of it. Exit code 3 if something is not explained.

    Options:
        PROBES OUT …: The folder of probes, and the one of what the script made of them; further pairs of both of models with other sizes.
        --pair: PROBES is a real checkpoint, and OUT what was made of it. No script is run, but probes tell more.
        --config FILE: A config.json whose whole numbers name sizes; once for each pair, in order.
        --size NAME=N: The name of a size of the first pair; may be repeated.

    Examples:
        $ reshard rules infer probes out > llama.yaml
        $ reshard rules infer probes out probes2 out2 > llama.yaml
        $ reshard rules infer probes out --config tiny/config.json > llama.yaml
        $ reshard rules infer --pair ckpt/1000 hf --config hf/config.json > llama.yaml
    """
    if len(folders) % 2:
        raise Misuse("each PROBES needs an OUT; name both folders of each model")
    given: list[dict[str, int]] = [_numbers(file) for file in config or ()] or [{}]
    given[0] |= sizes(size)
    if len(given) > len(folders) // 2:
        raise Misuse("there are more --config than pairs of PROBES and OUT; name one for each pair")
    first, second, *more = folders
    found = by_example.infer(first, second, *more, sizes=given, pair=pair)
    if as_json:
        print_json({"command": "rules infer", **found.to_dict()})
    else:
        typer.echo(found.text, nl=False)
        warn(found.questions)
        for problem in found.problems:
            typer.echo(f"not explained: {problem}", err=True)
    if found.problems:
        raise typer.Exit(DIFFERENT)


def _numbers(file: str) -> dict[str, int]:
    """The whole numbers above 1 of a JSON object, by names that a map may use."""
    try:
        document = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Misuse(f"--config {file!r} cannot be read as JSON: {error}") from None
    members = document.items() if isinstance(document, dict) else ()
    return {
        name: number
        for name, number in members
        if name.isidentifier() and type(number) is int and 1 < number < 1 << 40
    }


def check(
    map: str,  # noqa: A002  the name of the option
    probes: str,
    out: str,
    *,
    size: Annotated[Texts, declared("sizes")] = None,
    reverse: Annotated[bool, declared("reverse")] = False,
    as_json: bool = False,
) -> None:
    """Compare what a map makes of probes with what a script made of them, bit by bit.

    Of two maps that fit by shape it tells which is right. Exit code 3 if something differs.

    Options:
        MAP: The map file.
        PROBES: The folder that reshard rules probe wrote.
        OUT: A folder with what the script made of each probe, under its name.

    Examples:
        $ reshard rules check llama.yaml probes out
    """
    found = by_example.check(map, probes, out, sizes=sizes(size), reverse=reverse)
    if as_json:
        print_json({"command": "rules check", "runs": [one.to_dict() for one in found]})
    else:
        unlike = next((one for one in found if one.differences), found[-1])
        show_view("verification.verification_view", unlike, False, most_rows())
    if any(one.differences for one in found):
        raise typer.Exit(DIFFERENT)


RULES_COMMANDS = {"probe": probe, "infer": infer, "check": check}


def recipes(name: str | None = None, *, as_json: bool = False) -> None:
    """List the maps that come with reshard, or write one of them.

    convert, plan and verify take the name of a recipe for --map. To change one, write it to a file.

    Options:
        [NAME]: The recipe whose text is written.

    Examples:
        $ reshard recipes
        $ reshard recipes maxtext-llama3.1 > llama.yaml
        $ reshard recipes --json | jq '.recipes[].name'
    """
    known = by_example.recipes()
    if name is not None:
        typer.echo(by_example.recipe(name), nl=False)
        return
    if as_json:
        listed = [{"name": each, "about": about} for each, about in known.items()]
        print_json({"command": "recipes", "recipes": listed})
        return
    from reshard.cli.tables import table

    print_all([table("", ("recipe", "what it is for"), known.items())])
