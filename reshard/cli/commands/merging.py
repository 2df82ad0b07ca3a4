"""``reshard merge``."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

import reshard
from reshard.cli.groups import ByServer, Chosen, Output, Resources, refuse_here
from reshard.cli.options import Count, Misuse, given_of
from reshard.cli.remote import convert_there, goals_there
from reshard.cli.target_options import (
    NamedTarget,
    check_words,
    given_options,
    library_options,
    takes_target_options,
)
from reshard.maps.read_map import recipe_names


@takes_target_options(after="sources")
def merge(
    sources: list[str],
    *,
    weights: str | None = None,
    ema: float | None = None,
    last: Count = None,
    base: str | None = None,
    scale: float | None = None,
    from_: Count = None,
    dtype: str | None = None,
    unlisted: reshard.Unlisted = "leave",
    resources: Resources,
    by: ByServer,
    output: Output,
    **given: Any,
) -> None:
    r"""Average checkpoints into one.

    Reads all of them once, in bounded memory, whatever the format and the mesh of each, and writes DST as reshard convert does: it appears whole
    or not at all, and the same command resumes an interrupted run. Floats are summed in float64 and rounded once, so that the result has the
    same bits in whichever order the checkpoints are given. Integers, strings and PRNG keys must be equal in all of them, or are taken from one
    (--from). Their tensors must have the same names and shapes; a map for each makes them so (CKPT=MAP).

    TIES, DARE and SLERP are not done: they need each tensor twice, or draw at random by a seed.

    Options:
        CKPT[=MAP]... DST: The checkpoints, the oldest first, each perhaps with a map file or a recipe, and, last, where the result goes. The
            first gives names, dtypes and metadata. 'run/{8000..10000..500}' stands for several steps.

    Averages:
        --weights W,W,…|linear|minus-sqrt: A weight for each checkpoint, divided by the sum of all; or the weights of an average that
            stands for a decay of the learning rate, as Megatron-LM computes them. Default: all are equal.
        --ema D: The weights of a moving average with this decay, such as 0.999.
        --last N: The one CKPT is the folder of a training run: average its last N steps.
        --base CKPT[=MAP]: The checkpoint that all were trained from, for task arithmetic: adds to it what each checkpoint changes of it, times
            its weight and --scale; weights are then taken as they are, 1 by default.
        --scale FACTOR: By which the sum of changes is multiplied, for task arithmetic. Default: 1.
        --from N: Take integers, strings and PRNG keys from the Nth checkpoint, where they differ.
        --dtype DTYPE: Of averaged tensors, such as float32; default: that of the first. Floats are rounded once; --cast would round again.

    By a server:
        --server URL: Let this server merge: every CKPT and DST are then ROOT/path on the server, without maps and ranges, and --layout may
            also name what it stores. Ctrl-C stops watching; the merge continues. Default: the variable RESHARD_SERVER.

    Examples:
        $ reshard merge ckpt/1000 ckpt/2000 averaged --from 2
        $ reshard merge ckpt averaged --last 2 --from 2 --weights minus-sqrt
        $ reshard merge 'ckpt/{1000..2000..1000}' averaged --from 2 --ema 0.9
        $ reshard merge ckpt/1000 ckpt/2000 averaged --from 2 --to safetensors \
          --select '^params/' --weights 1,3
        $ reshard merge data/run/1000 data/run/2000 data/averaged --from 2 \
          --server http://checkpoints:8080 --token-file token
    """
    server, limits = by.asked(), asdict(resources)
    if given["target"] or len(sources) < 2:
        found = "--target" if given["target"] else f"{sources[0]} alone"
        raise Misuse(
            f"{found} was given; expected the checkpoints and, last, the one target: reshard merge run/9000 run/10000 averaged"
        )
    options, layout, mesh = given_options(given), given["layout"], given["mesh"]
    check_words(options, [mesh], is_there=server is not None)
    *named, dst = sources
    paths = list(map(_with_map, named))
    by_base = {"base": base and _with_map(base), "scale": scale}
    asked = given_of(
        weights=_weights(weights), ema=ema, last=last, **by_base, from_=from_, dtype=dtype
    )
    if server is not None:
        maps = ["=".join(each) for each in (*paths, asked.get("base")) if isinstance(each, tuple)]
        refuse_here(server, {"--last": last, **{f"the map in {text}": text for text in maps}})
    with output.watching() as progress:
        if server is None:
            report = reshard.merge(
                paths, dst, **asked, layout=layout, mesh=mesh, unlisted=unlisted, progress=progress, **limits, **library_options(options)
            )  # fmt: skip
        else:
            goal = goals_there([NamedTarget(dst, layout, mesh)], options)
            how = {"from_checkpoint" if n == "from_" else n: value for n, value in asked.items()}
            choice = Chosen(unlisted=unlisted).there()
            request = {"source": paths[0], "merge": {"others": paths[1:], **how}, **choice, **limits, **goal}  # fmt: skip
            (report,) = convert_there(server, request, progress).reports
    output.tell("merge", report, "report.report_view", output.show_all)


def _with_map(text: str) -> str | tuple[str, str]:
    """A checkpoint, or a checkpoint and its map: a file or a recipe behind the last ``=``; others have that sign in a path."""
    first, _, by = text.rpartition("=")
    is_map = by.endswith((".yaml", ".yml", ".json")) or by in recipe_names()
    return (first, by) if first and is_map else text


def _weights(text: str | None) -> list[float] | str | None:
    """The numbers in a text; another text is a name, or refused by the library."""
    try:
        return text if text is None else list(map(float, text.split(",")))
    except ValueError:
        return text
