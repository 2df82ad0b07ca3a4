"""Views: the rules by which files are made of a source as they are read; their revisions, files and readers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from reshard.api.views import OF_A_RUN
from reshard.conversion.options import LIBRARY_NAMES, FormatName
from reshard_server.schemas.base import LEFT_OUT as NONE
from reshard_server.schemas.base import (
    Answer,
    RequestDocument,
    RootedPath,
    StepNumber,
    shown_request,
)
from reshard_server.schemas.conversion import DECLARED, ConvertedChoice, option_members
from reshard_server.schemas.stored import LEFT_OUT, ListedVersion, Version

OF_A_VIEW = tuple(
    name for name in DECLARED if LIBRARY_NAMES.get(name, name) not in (*OF_A_RUN, "ocdbt")
)
"""The options of a target that make its files, but for OCDBT, whose database is written as a whole."""


class ViewRules(ConvertedChoice):
    """A source, and the options of a conversion that make the files of a view."""

    step: StepNumber | Literal["latest", "each"] | None = NONE
    """Of a training run at this path: one step; each, of which every finished step is a revision; or latest, the newest finished one."""

    item: Annotated[str | None, Field(max_length=255, examples=["model"])] = NONE
    """One item of a checkpoint with several; names of tensors are then relative to it."""

    config: RootedPath | None = None


_FORMAT = Field("safetensors", description="Format of the files.")
_MEMBERS = {**option_members(OF_A_VIEW), "to": (FormatName, _FORMAT)}
RULES = create_model("ViewRules", __base__=ViewRules, __doc__=ViewRules.__doc__, **_MEMBERS)
"""The rules with all of these options."""


class ViewBody(RequestDocument):
    """The rules of a view."""

    view: RULES  # type: ignore[valid-type]  # a model that is made at run time


class StoredView(Version):
    """One version of a view, with the contents of the layout and the map that it was sent with by name; versions count from 1."""

    content_member = "view"
    view: Annotated[dict[str, Any], shown_request("ViewRules")]


class ListedView(ListedVersion):
    """One version of a view in a listing."""

    content_member = "view"
    view: Annotated[dict[str, Any] | None, shown_request("ViewRules")] = LEFT_OUT


class ViewPage(Answer):
    """The newest version of each view, by name."""

    views: list[ListedView]
    next_page_token: str | None = None


class ViewVersionPage(Answer):
    """All versions of one view, newest first."""

    versions: list[ListedView]
    next_page_token: str | None = None


class ViewRevision(Answer):
    """A state of the source in which the view can be read."""

    commit: str = Field(description="Its id, 40 hex digits; the same id means the same bytes.")
    step: int | None
    modified: datetime = Field(description="Of the source; in a bucket, when it was looked at.")
    is_open: bool = Field(description="Its files are known to this server already.")


class ViewRevisions(Answer):
    """Revisions, newest first; with the step latest the one that is main."""

    revisions: list[ViewRevision]


class FileOfView(Answer):
    """A file of a view."""

    path: str
    nbytes: int
    crc64nvme: str | None = Field(description="16 hex digits; null where tensors must be read.")


class ViewFiles(Answer):
    """The files of a revision, by path."""

    commit: str
    identity: str | None = Field(description="Root of the weights, where the source records it.")
    files: list[FileOfView]


class ViewLoad(Answer):
    """The reading of a view with one token."""

    token: str
    streams: int = Field(description="Open ones.")
    bytes_per_second: float = Field(description="Over the last ten seconds.")


class ViewLoads(Answer):
    """Those that read a view from this server now, or within the last ten seconds, by token."""

    loads: list[ViewLoad]
