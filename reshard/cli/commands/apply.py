"""``reshard apply``."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import Misuse, Unlisted, examples
from reshard.cli.remote import convert_there, goals_there
from reshard.cli.server_options import ApplyServer, TokenFile, asked_server
from reshard.cli.target_options import (
    Base,
    DeltasAndTarget,
    NamedTarget,
    check_words,
    given_options,
    library_options,
    split_target,
    takes_target_options,
)

EXAMPLES = examples(
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
