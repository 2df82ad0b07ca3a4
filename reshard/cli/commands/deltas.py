"""``reshard delta`` and ``apply``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec.structs import asdict

import reshard
from reshard.cli.groups import ByServer, Chosen, Computed, Notifying, Output, Resources
from reshard.cli.options import Misuse, Texts
from reshard.cli.remote import convert_there, delta_there, goals_there, layout_there, map_there
from reshard.cli.target_options import (
    Changes,
    NamedTarget,
    check_words,
    declared,
    given_options,
    library_options,
    split_target,
    takes_target_options,
)
from reshard.deltas.declared_options import OPTIONS


def delta(
    old: str,
    new: str,
    dst: str,
    *,
    chosen: Chosen,
    layout: str | None = None,
    changes: Changes,
    receiver: Annotated[reshard.DeltaReceiver, declared("receiver", OPTIONS)] = "pull_weights",
    base_version: str | None = None,
    encoding: Annotated[reshard.DeltaEncoding, declared("encoding", OPTIONS)] = "xor",
    checksum: Annotated[reshard.DeltaChecksum | None, declared("checksum", OPTIONS)] = None,
    file_bytes: Annotated[int | None, declared("file_bytes", OPTIONS)] = None,
    resources: Resources,
    by: Notifying,
    output: Output,
) -> None:
    r"""Write what turns one version of the weights into the next, in the layout that serving reads.

    DST gets what differs between OLD and what reshard convert would make of NEW with the same map and rules, byte by byte: an index and
    safetensors files with a compressed payload for each tensor that changed. miles, slime and SGLang's pull_weights read this layout, ModelExpress
    with --for modelexpress, and reshard apply makes full checkpoints of it. DST appears whole or not at all.

    Tensors that were added, removed or reshaped are refused: publish a full version then. Needs the extra delta.

    Options:
        OLD: The version before: already converted, or an earlier step, to which the same map and rules are applied.
        NEW: The step to publish; with --step, the folder of a training run.
        DST: The folder of the new version, such as published/weight_v000007; its name says which version it is.
        --base-version ID: The version of OLD. Default: what its index or its folder's name says, else the number before that of DST.

    Changes on the way:
        --layout FILE: Layout file of which the rules and the map count; its axes split nothing, since the tensors of a delta are whole.

    By a server:
        --server URL: Let this server make the delta: OLD, NEW and DST are then ROOT/path on the server, and --map may also name what it
            stores. Ctrl-C stops watching; the server continues. Default: the variable RESHARD_SERVER.

    Examples:
        $ reshard delta hf ckpt/2000 published/weight_v000001 --map to_hf.yaml
        $ reshard delta ckpt/1000 ckpt/2000 published/weight_v000001 --map to_hf.yaml
        $ reshard delta hf ckpt published/weight_v000001 --step latest --map to_hf.yaml
        $ reshard delta hf ckpt/2000 express/v7 --map to_hf.yaml --for modelexpress --base-version v6
        $ reshard delta data/hf data/run data/published/weight_v000001 --step latest \
          --map to_hf.yaml --server http://checkpoints:8080 --token-file token
    """
    asked, told = by.asked(), by.there()
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
            request = {
                "old": old,
                "new": new,
                "target": dst,
                **chosen.there(),
                **form,
                **rules,
                **told,
            }
            report = delta_there(asked, request, progress)
    output.tell("delta", report, "inspection.delta_view", output.show_all)


@takes_target_options(after="deltas")
def apply(
    base: str,
    deltas: list[str],
    *,
    unlisted: reshard.Unlisted = "leave",
    dequantize: reshard.Dequantized | None = None,
    lora: Texts = None,
    resources: Resources,
    by: ByServer,
    output: Output,
    **given: Any,
) -> None:
    r"""Fold deltas into a full checkpoint.

    Converts BASE, as the last of the deltas leaves it, to DST: one pass in bounded memory, any format and mesh. DST appears whole or not at
    all, and the same command resumes an interrupted run. The versions must follow one another from BASE. The checksum that each delta
    records of a tensor is compared; deltas of reshard record those of the tensors that they do not change, too.

    Exit code 3 if BASE is not the one from which the deltas were made, or if a checksum differs.

    Options:
        BASE: The full version from which the deltas start: safetensors with whole tensors.
        DELTA... DST: The folder of every delta from BASE to the version that is wanted, in any order; and, last, where the full checkpoint
            goes.

    By a server:
        --server URL: Let this server convert: BASE, every DELTA and DST are then ROOT/path on the server, and --layout may also name what
            it stores. Ctrl-C stops watching; the conversion continues. Default: the variable RESHARD_SERVER.

    Examples:
        $ reshard apply hf published/weight_v000001 hf-1
        $ reshard apply hf published/weight_v00000[1-2] hf-2
        $ reshard apply hf published/weight_v000001 served --to orbax --mesh model=8
        $ reshard apply data/hf data/published/weight_v000001 data/hf-1 \
          --server http://checkpoints:8080 --token-file token
    """
    asked = by.asked()
    limits = asdict(resources)
    if given["target"]:
        raise Misuse(
            "--target makes several targets of one conversion, but deltas are folded into one; name it after the deltas"
        )
    folders, dst = split_target(deltas)
    options = given_options(given)
    choice = Computed(unlisted=unlisted, dequantize=dequantize, lora=lora)
    layout, mesh = given["layout"], given["mesh"]
    check_words(options, [mesh], is_there=asked is not None)
    with output.watching() as progress:
        if asked is None:
            report = reshard.apply(
                base, folders, dst, layout=layout, mesh=mesh, progress=progress, **choice.option, **limits, **library_options(options)
            )  # fmt: skip
        else:
            goal = goals_there([NamedTarget(dst, layout, mesh)], options)
            request = {"source": base, "deltas": folders, **choice.option, **limits, **goal}
            (report,) = convert_there(asked, request, progress).reports
    output.tell("apply", report, "report.report_view", output.show_all)
