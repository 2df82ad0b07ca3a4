"""``reshard delta`` and ``apply``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import (
    ApplyServer,
    Chosen,
    DeltaServer,
    Output,
    Resources,
    TokenFile,
    asked_server,
)
from reshard.cli.options import Misuse, Unlisted, examples
from reshard.cli.remote import convert_there, delta_there, goals_there, layout_there, map_there
from reshard.cli.target_options import (
    Base,
    Changes,
    DeltasAndTarget,
    NamedTarget,
    check_words,
    declared,
    given_options,
    library_options,
    split_target,
    takes_target_options,
)
from reshard.deltas.declared_options import OPTIONS
from reshard.options import CHANGES

DELTA_EXAMPLES = examples(
    "reshard delta hf ckpt/2000 published/weight_v000001 --map to_hf.yaml",
    "reshard delta ckpt/1000 ckpt/2000 published/weight_v000001 --map to_hf.yaml",
    "reshard delta hf ckpt published/weight_v000001 --step latest --map to_hf.yaml",
    "reshard delta hf ckpt/2000 express/v7 --map to_hf.yaml --for modelexpress --base-version v6",
    "reshard delta data/hf data/run data/published/weight_v000001 --step latest \\",
    "    --map to_hf.yaml --server http://checkpoints:8080 --token-file token",
)

Old = Annotated[
    str,
    typer.Argument(
        metavar="OLD",
        help="The version before: already converted, or an earlier step, to which the same map and rules are applied.",
    ),
]
New = Annotated[
    str,
    typer.Argument(
        metavar="NEW", help="The step to publish; with --step, the folder of a training run."
    ),
]
Dst = Annotated[
    str,
    typer.Argument(
        metavar="DST",
        help="The folder of the new version, such as published/weight_v000007; its name says which version it is.",
    ),
]
BaseVersion = Annotated[
    str | None,
    typer.Option(
        "--base-version",
        metavar="ID",
        help="The version of OLD. Default: what its index or its folder's name says, else the number before that of DST.",
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Layout file of which the rules and the map count; its axes split nothing, since the tensors of a delta are whole.",
        rich_help_panel=CHANGES,
    ),
]


def delta(
    old: Old,
    new: New,
    dst: Dst,
    *,
    chosen: Chosen,
    layout: Layout = None,
    changes: Changes,
    receiver: Annotated[reshard.DeltaReceiver, declared("receiver", OPTIONS)] = "pull_weights",
    base_version: BaseVersion = None,
    encoding: Annotated[reshard.DeltaEncoding, declared("encoding", OPTIONS)] = "xor",
    checksum: Annotated[reshard.DeltaChecksum | None, declared("checksum", OPTIONS)] = None,
    file_bytes: Annotated[int | None, declared("file_bytes", OPTIONS)] = None,
    resources: Resources,
    server: DeltaServer = None,
    token_file: TokenFile = None,
    output: Output,
) -> None:
    """Write what turns one version of the weights into the next, in the layout that serving reads.

    DST gets what differs between OLD and what reshard convert would make of NEW with the same map and rules, byte by byte: an index and
    safetensors files with a compressed payload for each tensor that changed. miles, slime and SGLang's pull_weights read this layout, ModelExpress
    with --for modelexpress, and reshard apply makes full checkpoints of it. DST appears whole or not at all.

    Tensors that were added, removed or reshaped are refused: publish a full version then. Needs the extra delta.
    """
    asked = asked_server(server, token_file)
    rules = {name: value for name, value in changes.parsed().items() if value}
    check_words(rules, [], is_there=asked is not None)  # a layout that is wrong is no misuse
    form: dict[str, Any] = {
        "receiver": receiver,
        "base_version": base_version,
        "encoding": encoding,
        "checksum": checksum,
        "file_bytes": file_bytes,
        **asdict(resources),
    }
    with output.watching() as progress:
        if asked is None:
            here = {**form, **rules, "layout": layout, **chosen.option}
            report = reshard.delta(old, chosen.of(new), dst, **here, progress=progress)
        else:
            rules |= map_there(changes.map)
            rules |= {} if layout is None else {"layout": layout_there(layout)}
            request = {"old": old, "new": new, "target": dst, **chosen.there(), **form, **rules}
            report = delta_there(asked, request, progress)
    if not output.is_told("delta", report, report.warnings):
        from reshard.cli.views.inspection import delta_view

        print_all(delta_view(report, output.show_all))


APPLY_EXAMPLES = examples(
    "reshard apply hf published/weight_v000001 hf-1",
    "reshard apply hf published/weight_v00000[1-2] hf-2",
    "reshard apply hf published/weight_v000001 served --to orbax --mesh model=8",
    "reshard apply data/hf data/published/weight_v000001 data/hf-1 \\",
    "    --server http://checkpoints:8080 --token-file token",
)


@takes_target_options(after="deltas")
def apply(
    base: Base,
    deltas: DeltasAndTarget,
    *,
    unlisted: Unlisted = "leave",
    resources: Resources,
    server: ApplyServer = None,
    token_file: TokenFile = None,
    output: Output,
    **given: Any,
) -> None:
    """Fold deltas into a full checkpoint.

    Converts BASE, as the last of the deltas leaves it, to DST: one pass in bounded memory, any format and mesh. DST appears whole or not at
    all, and the same command resumes an interrupted run. The versions must follow one another from BASE. The checksum that each delta
    records of a tensor is compared; deltas of reshard record those of the tensors that they do not change, too.

    Exit code 3 if BASE is not the one from which the deltas were made, or if a checksum differs.
    """
    asked = asked_server(server, token_file)
    limits = asdict(resources)
    if given["target"]:
        raise Misuse(
            "--target makes several targets of one conversion, but deltas are folded into one; name it after the deltas"
        )
    folders, dst = split_target(deltas)
    options = given_options(given)
    layout, mesh = given["layout"], given["mesh"]
    check_words(options, [mesh], is_there=asked is not None)
    with output.watching() as progress:
        if asked is None:
            report = reshard.apply(
                base, folders, dst, layout=layout, mesh=mesh, unlisted=unlisted, progress=progress, **limits, **library_options(options)
            )  # fmt: skip
        else:
            goal = goals_there([NamedTarget(dst, layout, mesh)], options)
            choice = Chosen(unlisted=unlisted).there()
            request = {"source": base, "deltas": folders, **choice, **limits, **goal}
            (report,) = convert_there(asked, request, progress).reports
    if not output.is_told("apply", report, report.warnings):
        from reshard.cli.views.report import report_view

        print_all(report_view(report, output.show_all, set()))
