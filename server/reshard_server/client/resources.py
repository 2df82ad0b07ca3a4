"""The client's plans, checkpoints, layouts, maps, views and schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct

from reshard import (
    CheckpointInfo,
    ConversionPlan,
    Fingerprint,
    Identification,
    LayoutMap,
    LayoutPreview,
    MissingAxes,
    MultiConversionPlan,
    Verification,
    VersionInfo,
)
from reshard.arguments import cast_pairs
from reshard.layout.bridges.from_keras import own_layout
from reshard_server.client.transport import D, Transport
from reshard_server.schemas.checkpoint import CheckpointPage, FoundCheckpoint
from reshard_server.schemas.schedule import (
    RunPage,
    Schedule,
    ScheduleBody,
    SchedulePage,
    ScheduleRun,
)
from reshard_server.schemas.stored import (
    LayoutPage,
    ListedLayout,
    ListedMap,
    MapPage,
    MapVersionPage,
    StoredLayout,
    StoredMap,
    VersionPage,
)
from reshard_server.schemas.view import ListedView, StoredView, ViewPage, ViewVersionPage


def layout_of(layout: Any) -> Any:
    """The layout as the API takes it.

    Raises LayoutError for a LayoutMap with keys that the server would refuse.
    """
    layout = own_layout(layout)
    if isinstance(layout, LayoutMap):
        return layout.to_mapping()
    return dict(layout) if isinstance(layout, Mapping) else layout


def map_of(given: Any) -> Any:
    """The map as the API takes it: a name, text or an object."""
    return dict(given) if isinstance(given, Mapping) else given


def with_layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a conversion, with the layout, the map and the casts as the API takes them."""
    given = dict(options)
    if "layout" in given:
        given["layout"] = layout_of(given["layout"])
    if given.get("map") is not None:
        given["map"] = map_of(given["map"])
    if given.get("cast") is not None:
        given["cast"] = cast_pairs(given["cast"])
    return given


class _Versions(Struct, frozen=True):
    versions: tuple[VersionInfo, ...]


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints below the storage roots."""

    transport: Transport

    def list(self, root: str, prefix: str = "", **page: Any) -> CheckpointPage:
        """A page of the checkpoints in a folder; takes ``page_size`` and ``page_token``."""
        params = {"root": root, "prefix": prefix, **page}
        return self.transport.model(CheckpointPage, "GET", "/v1/checkpoints", params=params)

    def each(self, root: str, prefix: str = "", **page: Any) -> Iterator[FoundCheckpoint]:
        """Every checkpoint that ``list`` would list, page after page."""
        params = {"root": root, "prefix": prefix, **page}
        return self.transport.each(CheckpointPage, "/v1/checkpoints", params, "checkpoints")

    def inspect(self, checkpoint: str, **more: Any) -> CheckpointInfo:
        """Returns names, shapes, dtypes, chunks and layouts; takes ``step`` and ``item``."""
        return self._ask(CheckpointInfo, "inspect", checkpoint=checkpoint, **more)

    def versions(self, checkpoint: str) -> tuple[VersionInfo, ...]:
        """The versions of weights in a folder, or one delta with the tensors that it changes."""
        query = {"checkpoint": checkpoint}
        path = "/v1/checkpoints:versions"
        return self.transport.document(_Versions, "GET", path, params=query, timeout=None).versions

    def verify(self, checkpoint: str, other: str | None = None, **more: Any) -> Verification:
        """Compares with another checkpoint, with its recorded digests, with a root (``identity``) or with the root that a public key
        signed (``key``, as PEM); differences are an answer."""
        return self._ask(Verification, "verify", checkpoint=checkpoint, other=other, **more)

    def fingerprint(self, checkpoint: str, **more: Any) -> Fingerprint:
        """Records digests of a checkpoint's tensors and files in it."""
        return self._ask(Fingerprint, "fingerprint", checkpoint=checkpoint, **more)

    def identify(self, checkpoint: str, **more: Any) -> Identification:
        """Computes the root of the weights, of all bytes; takes ``step``, ``item`` and ``max_memory``."""
        return self._ask(Identification, "identify", checkpoint=checkpoint, **more)

    def _ask(self, kind: type[D], verb: str, **body: Any) -> D:
        given = {k: v for k, v in body.items() if v is not None}
        return self.transport.document(
            kind, "POST", f"/v1/checkpoints:{verb}", json=given, timeout=None
        )


V = TypeVar("V", Schedule, StoredLayout, StoredMap, StoredView)
L = TypeVar("L", Schedule, ListedLayout, ListedMap, ListedView)
P = TypeVar("P", SchedulePage, LayoutPage, MapPage, ViewPage)
W = TypeVar("W", VersionPage, MapVersionPage, ViewVersionPage)


@dataclass(frozen=True)
class _Named(Generic[V, L, P]):
    """Resources by name."""

    transport: Transport

    _segment: ClassVar[str]
    _version: ClassVar[Any]
    _page: ClassVar[Any]

    def _put(self, name: str, body: Mapping[str, Any]) -> V:
        made: V = self.transport.model(self._version, "PUT", self._path(name), json=dict(body))
        return made

    def get(self, name: str) -> V:
        """The resource; of a layout or a map the newest version, or ``name@version``."""
        found: V = self.transport.model(self._version, "GET", self._path(name))
        return found

    def list(self, **query: Any) -> P:
        """A page by name, of layouts and maps the newest versions; takes ``page_size`` and ``page_token``, for these also ``prefix``."""
        found: P = self.transport.model(self._page, "GET", f"/v1/{self._segment}", params=query)
        return found

    def each(self, **query: Any) -> Iterator[L]:
        """All that ``list`` would list, page after page."""
        return self.transport.each(self._page, f"/v1/{self._segment}", query, self._segment)

    def delete(self, name: str) -> None:
        """Deletes all versions of a name, or a schedule and its history."""
        self.transport.ask("DELETE", self._path(name))

    def _path(self, name: str) -> str:
        return f"/v1/{self._segment}/{quote(name, safe='@')}"


class _Stored(_Named[V, L, P], Generic[V, L, P, W]):
    """Contents that are stored by name; every version is kept."""

    _versions: ClassVar[Any]

    def versions(self, name: str, **page: Any) -> W:
        """A page of the versions of a name, newest first."""
        path = f"{self._path(name)}/versions"
        found: W = self.transport.model(self._versions, "GET", path, params=page)
        return found

    def each_version(self, name: str, **page: Any) -> Iterator[L]:
        """Every version of a name, newest first, page after page."""
        path = f"{self._path(name)}/versions"
        return self.transport.each(self._versions, path, page, "versions")


class Layouts(_Stored[StoredLayout, ListedLayout, LayoutPage, VersionPage]):
    """Named layouts; every version is kept."""

    _segment, _version, _page, _versions = "layouts", StoredLayout, LayoutPage, VersionPage

    def put(self, name: str, layout: Mapping[str, Any] | LayoutMap) -> StoredLayout:
        """Stores the content of a layout file, or a LayoutMap, as the newest version."""
        return self._put(name, {"layout": layout_of(layout)})

    def preview(
        self,
        checkpoint: str,
        layout: str | Mapping[str, Any] | LayoutMap | None = None,
        mesh: str | None = None,
        missing_axes: MissingAxes | None = None,
    ) -> LayoutPreview:
        """Previews the split of each tensor of a checkpoint by a layout."""
        given = {
            "checkpoint": checkpoint,
            "layout": layout_of(layout),
            "mesh": mesh,
            "missing_axes": missing_axes,
        }
        body = {k: v for k, v in given.items() if v is not None}
        return self.transport.document(LayoutPreview, "POST", "/v1/layouts:preview", json=body)


class Maps(_Stored[StoredMap, ListedMap, MapPage, MapVersionPage]):
    """Named maps; every version is kept."""

    _segment, _version, _page, _versions = "maps", StoredMap, MapPage, MapVersionPage

    def put(self, name: str, map: str | Mapping[str, Any]) -> StoredMap:  # noqa: A002  (the name of the member)
        """Stores the content of a map file, as a mapping or as its text, as the newest version."""
        return self._put(name, {"map": map_of(map)})


class Views(_Stored[StoredView, ListedView, ViewPage, ViewVersionPage]):
    """Named views; every version is kept."""

    _segment, _version, _page, _versions = "views", StoredView, ViewPage, ViewVersionPage

    def put(self, name: str, source: str, **options: Any) -> StoredView:
        """Stores rules as the newest version: a source, its step, and the options of a conversion that make files."""
        return self._put(name, {"view": {"source": source, **with_layout(options)}})


@dataclass(frozen=True)
class Plans:
    """Plans: the work and the cost of a conversion."""

    transport: Transport

    def create(self, source: str, target: str, **options: Any) -> ConversionPlan:
        """Plans a conversion to one target; takes the options of ``Client.convert``."""
        body = {"source": source, "target": target, **with_layout(options)}
        return self.transport.document(ConversionPlan, "POST", "/v1/plans", json=body, timeout=None)

    def create_several(
        self, source: str, targets: Sequence[Mapping[str, Any]], **options: Any
    ) -> MultiConversionPlan:
        """Plans a conversion to several targets, each with its options; ``options`` apply to all."""
        body = {"source": source, "targets": [*map(with_layout, targets)], **options}
        return self.transport.document(
            MultiConversionPlan, "POST", "/v1/plans", json=body, timeout=None
        )


class Schedules(_Named[Schedule, Schedule, SchedulePage]):
    """Conversions at given times, or of each new step."""

    _segment, _version, _page = "schedules", Schedule, SchedulePage

    def put(self, name: str, body: ScheduleBody | Mapping[str, Any]) -> Schedule:
        """Stores or replaces a schedule."""
        given = ScheduleBody.model_validate(body).model_dump(mode="json", exclude_unset=True)
        return self._put(name, given)

    def pause(self, name: str) -> Schedule:
        """Pauses a schedule until it is resumed."""
        return self.transport.model(Schedule, "POST", f"{self._path(name)}:pause")

    def resume(self, name: str) -> Schedule:
        """Resumes a schedule."""
        return self.transport.model(Schedule, "POST", f"{self._path(name)}:resume")

    def run(self, name: str, step: int | None = None) -> ScheduleRun:
        """Runs a schedule now."""
        body = {} if step is None else {"step": step}
        return self.transport.model(ScheduleRun, "POST", f"{self._path(name)}:run", json=body)

    def runs(self, name: str, **page: Any) -> RunPage:
        """A page of the runs of a schedule, newest first."""
        return self.transport.model(RunPage, "GET", f"{self._path(name)}/runs", params=page)

    def each_run(self, name: str, **page: Any) -> Iterator[ScheduleRun]:
        """Every run of a schedule, newest first, page after page."""
        return self.transport.each(RunPage, f"{self._path(name)}/runs", page, "runs")
