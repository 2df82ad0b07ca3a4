"""``reshard jobs``: the conversions of a server."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshard.cli.console import print_all, print_json
from reshard.cli.groups import Asked, Group, JobsServer, TokenFile, needed_server
from reshard.cli.options import Json, examples
from reshard.cli.remote import connected, one_conversion

if TYPE_CHECKING:
    from reshard_server.schemas.conversion import Conversion

JOBS_EXAMPLES = examples(
    "export RESHARD_SERVER=http://checkpoints:8080 RESHARD_TOKEN=$(cat token)",
    "reshard jobs list --state failed",
    "reshard jobs show 019d7c3a5b1e9f2c6d8e4a7b0c31",
    "reshard jobs retry 019d7c3a5b1e9f2c6d8e4a7b0c31",
    "reshard jobs list --json | jq '.conversions[].id'",
)

NEWEST = 50
"""Conversions that are listed; ``--all`` lists the others too."""


class State(StrEnum):
    """The states of a conversion; typer takes no list of a Literal."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


Id = Annotated[
    str, typer.Argument(metavar="ID", help="The conversion's id, as reshard jobs list shows it.")
]
States = Annotated[
    list[State] | None,
    typer.Option(
        "--state",
        metavar="|".join(State),
        help="Only conversions in this state; once for each of several states.",
    ),
]
OfSource = Annotated[
    str | None,
    typer.Option("--source", metavar="ROOT/path", help="Only those whose source begins with this."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="KEY=VALUE", help="Only those with this label; once for each of several."
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Only those that this schedule made."),
]
All = Annotated[
    bool, typer.Option("--all", help=f"Every conversion; without it the newest {NEWEST}.")
]
ShowAll = Annotated[
    bool, typer.Option("--all", help="A row for each tensor of the report, with every column.")
]


class OfServer(Group, frozen=True):
    """The server whose conversions are meant, and the form of the answer."""

    server: JobsServer = None
    token_file: TokenFile = None
    as_json: Json = False

    def server_asked(self) -> Asked:
        """The server; a usage error where none is named."""
        return needed_server(self.server, self.token_file)


def jobs() -> None:
    """List, show, cancel and retry the conversions of a server.

    --server or the variable RESHARD_SERVER names the server. A token sees its own conversions, one with the scope admin sees
    all. No command waits for a conversion; reshard convert --server does.
    """


def list_jobs(
    state: States = None,
    source: OfSource = None,
    label: Labels = None,
    schedule: Schedule = None,
    show_all: All = False,
    *,
    answer: OfServer,
) -> None:
    """List conversions, newest first: from where to where, their ids, states, and when they were created.

    With --json also whether there are more of them, which --all lists.
    """
    filters = {"state": state, "source": source, "label": label, "schedule": schedule}
    query: dict[str, Any] = {name: value for name, value in filters.items() if value}
    with connected(answer.server_asked()) as client:
        each = client.conversions.each(**query)
        found = list(each if show_all else islice(each, NEWEST))
        has_more = not show_all and next(each, None) is not None
    if answer.as_json:
        listed = [_document(conversion) for conversion in found]
        print_json({"command": "jobs list", "conversions": listed, "has_more": has_more})
        return
    from reshard.cli.views.jobs import jobs_view

    print_all(jobs_view(found, has_more))


def show(
    conversion: Id,
    show_all: ShowAll = False,
    *,
    answer: OfServer,
) -> None:
    """Show one conversion or delta: its state and progress, why it failed, and what it did, as the command that made it shows it."""
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.conversion
        reports = handle.result if found.state == "succeeded" else []
    if answer.as_json:
        print_json({"command": "jobs show", **_document(found)})
        return
    from reshard.cli.views.jobs import job_view

    print_all(job_view(found, reports, show_all))


def cancel(
    conversion: Id,
    answer: OfServer,
) -> None:
    """Cancel a conversion: at once if it waits, within seconds if it runs. Its targets do not change.

    What is done is kept, so that reshard jobs retry resumes it.
    """
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.cancel()
    _say("jobs cancel", found, answer.as_json)


def retry(
    conversion: Id,
    answer: OfServer,
) -> None:
    """Queue a failed or cancelled conversion again; it resumes where it stopped."""
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.retry()
    _say("jobs retry", found, answer.as_json)


JOBS_COMMANDS = {
    "list": (
        list_jobs,
        examples(
            "reshard jobs list --server http://checkpoints:8080 --token-file token",
            "reshard jobs list --state failed --state cancelled",
            "reshard jobs list --source data/run --all --json",
        ),
    ),
    "show": (show, examples("reshard jobs show 019d7c3a5b1e9f2c6d8e4a7b0c31")),
    "cancel": (cancel, examples("reshard jobs cancel 019d7c3a5b1e9f2c6d8e4a7b0c31")),
    "retry": (retry, examples("reshard jobs retry 019d7c3a5b1e9f2c6d8e4a7b0c31")),
}
"""Each with the function that carries it out and the end of its help."""


def _say(command: str, found: Conversion, as_json: bool) -> None:
    """Says what was done, or prints the conversion as it is now."""
    if as_json:
        print_json({"command": command, **_document(found)})
        return
    from reshard.cli.views.jobs import changed_view

    print_all(changed_view(found))


def _document(found: Conversion) -> dict[str, Any]:
    return found.model_dump(mode="json")
