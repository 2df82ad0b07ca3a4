"""``--latency``, ``--bandwidth``, ``--hosts``, ``--cores`` and ``--nic``: the link and the machines for which a time is estimated."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from reshard.cli.options import RESOURCES, size

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s)", re.ASCII)
_MOST_S = 3600.0


def duration(text: str) -> float:
    """The seconds in an option's text; a usage error says what was expected."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a time; expected a number with ms or s, such as 30ms"
        )
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds > _MOST_S:
        raise typer.BadParameter(f"{text!r} is too long for a request; expected at most an hour")
    return seconds


def rate(text: str) -> int:
    """The bytes per second in an option's text; a usage error says what was expected."""
    return size(text.removesuffix("/s"))


Latency = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="TIME",
        help="How long a request to the bucket takes, for the expected time; reshard doctor measures it. Default: 30ms.",
        rich_help_panel=RESOURCES,
    ),
]
Bandwidth = Annotated[
    int | None,
    typer.Option(
        parser=rate,
        metavar="SIZE/s",
        help="Bytes per second from or to the bucket, all requests together. Default: 150MB/s.",
        rich_help_panel=RESOURCES,
    ),
]


def link_of(latency: float | None, bandwidth: int | None) -> dict[str, float]:
    """The given options, under the names of ``RequestPlan.seconds``."""
    given = {"latency_s": latency, "bytes_per_s": bandwidth}
    return {name: value for name, value in given.items() if value is not None}


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
    """The given options, under the names of ``ConversionPlan.time``; empty if no time was asked for."""
    given = {"hosts": hosts, "cores": cores, "nic_bytes_per_s": nic}
    return {name: value for name, value in given.items() if value is not None}
