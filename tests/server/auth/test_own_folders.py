"""Folders of the server's own below a root: they may be read, but are no targets, and no link leads a target into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from reshard_server.auth.root_paths import Roots

from reshard.storage.location import locate
from tests.server.auth.links import ANN, LOOKUPS, build, refused, roots_of

STAGING = "has the name of a folder for unfinished output (.NAME.reshard-partial)"
HELD = "is in the folder for hard links to sources (.reshard-held)"
REMOVED = "is in a folder that the server is removing (.reshard-removed-…)"
RESERVED = [
    (".out.reshard-partial", STAGING), (".reshard-partial", STAGING), (".out.reshard-partial/checkpoint", STAGING), ("a/..reshard-partial/b", STAGING),
    (".reshard-held", HELD), (".reshard-held/12", HELD), ("run/.reshard-held/12/d", HELD),
    (".reshard-removed-12", REMOVED), ("run/.reshard-removed-12/d", REMOVED),
]  # fmt: skip


@pytest.fixture(params=LOOKUPS)
def of_own(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Roots, Path]:
    """Roots that no other test uses, and the folder of ``data``."""
    root = build(tmp_path)
    return roots_of({"data": root, "hidden": root}, request.param), root


@pytest.mark.parametrize(("name", "why"), RESERVED)
def test_folders_of_our_own_are_no_targets(of_own: tuple[Roots, Path], name: str, why: str) -> None:
    roots, root = of_own
    (root / name).mkdir(parents=True)
    for problem, remedy in (
        (refused(roots.writable, ANN, f"data/{name}"), "choose another target"),
        (refused(roots.recheck, f"data/{name}", target=True), "choose another target"),
        (refused(roots.changeable, ANN, f"data/{name}"), "choose another checkpoint"),
    ):
        assert (problem.kind.status, problem.remedy) == (422, remedy)
        assert problem.detail == f"'data/{name}' {why}; {remedy}"
    assert roots.existing(ANN, f"data/{name}") == locate(root / name)  # it may be read
    for text in (f"hidden/{name}", f"unknown/{name}"):
        assert refused(roots.writable, ANN, text).kind.status == 404


@pytest.mark.parametrize(("name", "why"), RESERVED)
def test_no_link_leads_into_them(of_own: tuple[Roots, Path], name: str, why: str) -> None:
    roots, root = of_own
    (root / name).mkdir(parents=True)
    (root / "plain").symlink_to(name)
    for problem in (
        refused(roots.writable, ANN, "data/plain/new"),
        refused(roots.recheck, "data/plain/new", target=True),
        refused(roots.changeable, ANN, "data/plain"),
    ):
        assert problem.kind.status == 422 and why in problem.detail


@pytest.mark.parametrize("name", ["x.reshard-partial", "reshard-held", ".reshard-held-2", ".reshard-remove"])  # fmt: skip
def test_names_that_are_only_like_them(of_own: tuple[Roots, Path], name: str) -> None:
    roots, root = of_own
    assert roots.writable(ANN, f"data/{name}") == locate(root / name)
