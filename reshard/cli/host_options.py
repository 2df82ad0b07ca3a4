"""``--hosts``, ``--cores`` and ``--nic``: the machines for which ``plan`` estimates the time."""

from __future__ import annotations

from typing import Annotated

import typer

from reshard.cli.link_options import rate
from reshard.cli.options import RESOURCES

MOST = 1_000_000

Hosts = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="N",
        help="Also estimate the time on so many hosts that share the work, and name the bottleneck.",
        rich_help_panel=RESOURCES,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="N",
        help="Processors of each host, for that time. Default: those of this machine. Each of the --workers uses one.",
        rich_help_panel=RESOURCES,
    ),
]
Nic = Annotated[
    int | None,
    typer.Option(
        parser=rate,
        metavar="SIZE/s",
        help="Bytes per second of each host's network in each direction, such as 12.5GB/s, for that time.",
        rich_help_panel=RESOURCES,
    ),
]


def machines_of(hosts: int | None, cores: int | None, nic: int | None) -> dict[str, int]:
    """What was given, under the names of ``ConversionPlan.time``; empty if no time was asked for."""
    given = {"hosts": hosts, "cores": cores, "nic_bytes_per_s": nic}
    return {name: value for name, value in given.items() if value is not None}
