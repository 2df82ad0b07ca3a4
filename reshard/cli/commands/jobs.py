"""``reshard jobs``: the conversions of a server."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshard.cli.console import print_json, show_view
from reshard.cli.groups import SERVER_VARIABLE, Asked, ByServer
from reshard.cli.options import Misuse
from reshard.cli.remote import connected, one_conversion

if TYPE_CHECKING:
    from reshard_server.schemas.conversion import Conversion

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


class OfServer(ByServer, frozen=True):
    """The server whose conversions are meant, and the form of the answer.

    By a server:
        --server URL: The server whose conversions are meant. Default: the variable RESHARD_SERVER.
    """

    as_json: bool = False

    def server_asked(self) -> Asked:
        """The server; a usage error where none is named."""
        asked = ByServer(self.server).asked()
        if asked is None:
            raise Misuse(
                f"no server is named: give its URL by --server, such as http://checkpoints:8080, or in the variable {SERVER_VARIABLE}"
            )
        return Asked(asked.url, self.token_file)

    def tell(self, command: str, found: Conversion, view: str, *more: Any) -> None:
        """Prints a conversion: as JSON, or by a view."""
        if self.as_json:
            print_json({"command": command, **found.model_dump(mode="json")})
        else:
            show_view(view, found, *more)


def jobs() -> None:
    """List, show, cancel and retry the conversions of a server.

    --server or the variable RESHARD_SERVER names the server. A token sees its own conversions, one with the scope admin sees
    all. No command waits for a conversion; reshard convert --server does.

    Examples:
        $ export RESHARD_SERVER=http://checkpoints:8080 RESHARD_TOKEN=$(cat token)
        $ reshard jobs list --state failed
        $ reshard jobs show 019d7c3a5b1e9f2c6d8e4a7b0c31
        $ reshard jobs retry 019d7c3a5b1e9f2c6d8e4a7b0c31
        $ reshard jobs list --json | jq '.conversions[].id'
    """


def list_jobs(
    *,
    state: list[State] | None = None,
    source: str | None = None,
    label: list[str] | None = None,
    schedule: str | None = None,
    show_all: bool = False,
    answer: OfServer,
) -> None:
    """List conversions, newest first: from where to where, their ids, states, and when they were created.

    With --json also whether there are more of them, which --all lists.

    Options:
        --state queued|running|cancelling|succeeded|failed|cancelled: Only conversions in this state; once for each of several states.
        --source ROOT/path: Only those whose source begins with this.
        --label KEY=VALUE: Only those with this label; once for each of several.
        --schedule NAME: Only those that this schedule made.
        --all: Every conversion; without it the newest 50.

    Examples:
        $ reshard jobs list --server http://checkpoints:8080 --token-file token
        $ reshard jobs list --state failed --state cancelled
        $ reshard jobs list --source data/run --all --json
    """
    filters = {"state": state, "source": source, "label": label, "schedule": schedule}
    query: dict[str, Any] = {name: value for name, value in filters.items() if value}
    with connected(answer.server_asked()) as client:
        each = client.conversions.each(**query)
        found = list(each if show_all else islice(each, NEWEST))
        has_more = not show_all and next(each, None) is not None
    if answer.as_json:
        listed = [conversion.model_dump(mode="json") for conversion in found]
        print_json({"command": "jobs list", "conversions": listed, "has_more": has_more})
    else:
        show_view("jobs.jobs_view", found, has_more)


def show(conversion: Id, *, show_all: bool = False, answer: OfServer) -> None:
    """Show one conversion or delta: its state and progress, why it failed, and what it did, as the command that made it shows it.

    Options:
        --all: A row for each tensor of the report, with every column.

    Examples:
        $ reshard jobs show 019d7c3a5b1e9f2c6d8e4a7b0c31
    """
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.conversion
        reports = handle.result if found.state == "succeeded" else []
    answer.tell("jobs show", found, "jobs.job_view", reports, show_all)


def cancel(conversion: Id, *, answer: OfServer) -> None:
    """Cancel a conversion: at once if it waits, within seconds if it runs. Its targets do not change.

    What is done is kept, so that reshard jobs retry resumes it.

    Examples:
        $ reshard jobs cancel 019d7c3a5b1e9f2c6d8e4a7b0c31
    """
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.cancel()
    answer.tell("jobs cancel", found, "jobs.changed_view")


def retry(conversion: Id, *, answer: OfServer) -> None:
    """Queue a failed or cancelled conversion again; it resumes where it stopped.

    Examples:
        $ reshard jobs retry 019d7c3a5b1e9f2c6d8e4a7b0c31
    """
    with one_conversion(answer.server_asked(), conversion) as handle:
        found = handle.retry()
    answer.tell("jobs retry", found, "jobs.changed_view")


JOBS_COMMANDS = {"list": list_jobs, "show": show, "cancel": cancel, "retry": retry}
