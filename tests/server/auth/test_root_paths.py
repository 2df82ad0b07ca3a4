"""Paths: which are refused by their form, which are beneath a root, and, by fuzzing, that no link leads out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as fuzzing
from hypothesis import strategies as st
from reshard_server.auth import local_root
from reshard_server.auth.local_root import (
    Lookup,
    best_lookup,
    lookup_by_kernel,
    lookup_by_walk,
    may_be_named,
    parts,
)
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import ANYONE
from reshard_server.errors.problems import ProblemError
from reshard_server.settings import load_settings

from reshard.errors import ReshardError
from reshard.formats import known_formats
from reshard.storage.location import locate
from tests.prefix_format import PREFIX, write_prefix
from tests.server.auth.links import ANN, EVE, LINKS, LOOKUPS, build, refused, roots_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tree"))


@pytest.fixture(params=LOOKUPS)
def roots(request: pytest.FixtureRequest, root: Path) -> Roots:
    return roots_of(
        {"data": root, "hidden": root.parent / "secret", "gone": root / "not"}, request.param
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("data", "it has no root's name before a slash"),
        ("/data/a", "it has no root's name before a slash"),
        ("data/", "it has an empty name"),
        ("data//etc", "it has an empty name"),
        ("data/a/", "it has an empty name"),
        ("data/../secret", "it has a name of dots"),
        ("data/./a", "it has a name of dots"),
        ("data/a/..", "it has a name of dots"),
        ("../secret", "'..' is not the name of a root"),
        ("data/%2e%2e/secret", "it has the character '%'"),
        ("data/x|ocdbt:", "it has the character '|'"),
        ("data/x?y", "it has the character '?'"),
        ("data/x#y", "it has the character '#'"),
        ("data/x;y", "it has the character ';'"),
        ("data/x\\..\\y", r"it has the character '\\'"),
        ("data/x\0", r"it has the character '\x00'"),
        ("data/x\ny", r"it has the character '\n'"),
        ("data/x\x7f", r"it has the character '\x7f'"),
        ("data/x\x9b", r"it has the character '\x9b'"),
        ("data/x\u2028", r"it has the character '\u2028'"),
        ("data/x\ud800", r"it has the character '\ud800'"),
        ("file:///etc/passwd", "'file:' is not the name of a root"),
        ("file:/etc/passwd", "'file:' is not the name of a root"),
        ("gs://bucket/a", "'gs:' is not the name of a root"),
        ("user:password@host/a", "'user:password@host' is not the name of a root"),
        ("~/a", "'~' is not the name of a root"),
        ("$HOME/a", "'$HOME' is not the name of a root"),
        ('{"driver"/"x"}', """'{"driver"' is not the name of a root"""),
        ("data/" + "a/" * 3000 + "a", "it is longer than 4096 bytes"),
        ("data/" + "a" * 256, "it has a name longer than 255 bytes"),
        ("data/" + "ü" * 128, "it has a name longer than 255 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_path(roots: Roots, text: str, why: str) -> None:
    for call in (roots.readable, roots.writable, roots.existing, roots.changeable):
        problem = refused(call, ANYONE, text)
        assert problem.kind.status == 422
        assert problem.detail == (
            f"{text[:200]!r} is not a path below a storage root: {why}; give ROOT/path, with plain names between single "
            "slashes"
        )
    assert refused(roots.recheck, text).kind.status == 422


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("data/run/1000", "run/1000"),
        ("data/latest", "run/1000"),
        ("data/to_latest/d", "run/1000/d"),
        ("data/slash", "run"),
        ("data/dots", "run/1000"),
        ("data/odd", "run/1000"),
        ("data/itself/run", "run"),
        ("data/run/up/run/up", ""),
        ("data/to_file", "run/file"),
        ("data/run/1000/new/deep", "run/1000/new/deep"),
        ("data/latest/new", "run/1000/new"),
        ("data/2026-11-21T03:00:00 a@b", "2026-11-21T03:00:00 a@b"),
    ],
)
def test_links_that_stay_beneath_are_followed(
    roots: Roots, root: Path, text: str, real: str
) -> None:
    assert roots.readable(ANN, text) == roots.recheck(text) == locate(root / real)


@pytest.mark.parametrize(
    "name",
    ["outside", "outside/key", "outside/new", "sibling", "round", "round/1000", "absolute", "inside_absolute", "etc/passwd",
     "proc/etc/passwd", "through", "circle", "circle/x", "pair_a", "dangling", "dangling/x", "dangling_out", "run/out/key",
     "run/file/below", "through_file", "file_slash/x"],
)  # fmt: skip
def test_what_leads_out_or_nowhere_is_not_there(roots: Roots, name: str) -> None:
    problem = refused(roots.readable, ANN, f"data/{name}")
    assert (problem.kind.status, problem.detail) == (
        404,
        f"there is nothing at 'data/{name}'; check the path",
    )
    assert refused(roots.recheck, f"data/{name}").detail == problem.detail


def test_what_a_caller_may_not_see_is_answered_like_what_is_not_there(roots: Roots) -> None:
    for text in ("hidden/key", "unknown/key", "gone/key"):
        calls = (roots.readable, roots.existing, roots.writable, roots.changeable)
        problems = [refused(call, who, text) for call in calls for who in (ANN, EVE)]
        assert {(p.kind.status, p.detail) for p in problems} == {
            (404, f"there is nothing at {text!r} that this token may use; check root and path")
        }


def test_reading_is_not_writing(roots: Roots, root: Path) -> None:
    assert roots.existing(EVE, "data/run") == locate(root / "run")
    for call in (roots.writable, roots.changeable):
        assert refused(call, EVE, "data/run").kind.status == 404
    assert roots.changeable(ANN, "data/latest") == locate(root / "run" / "1000")
    assert refused(roots.existing, ANN, "data/run/1001").kind.status == 404


def test_the_prefix_of_a_checkpoints_files_exists(
    roots: Roots, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_formats, "FORMATS", (*known_formats.FORMATS, PREFIX))
    prefix = write_prefix(root / "run" / "ckpt-1", {"w": np.ones(4)})
    assert roots.existing(ANN, "data/run/ckpt-1") == locate(prefix)
    assert refused(roots.existing, ANN, "data/run/ckpt").kind.status == 404
    assert refused(roots.existing, ANN, "data/outside/ckpt-1").kind.status == 404


def test_a_targets_own_name_is_not_followed(roots: Roots, root: Path) -> None:
    assert roots.writable(ANN, "data/latest") == locate(root / "latest")
    assert roots.writable(ANN, "data/outside") == locate(
        root / "outside"
    )  # the library refuses links
    assert roots.writable(ANN, "data/latest/out/new") == locate(root / "run/1000/out/new")
    assert roots.recheck("data/latest", target=True) == locate(root / "latest")
    for text in ("data/outside/new", "data/dangling/new", "data/etc/new", "data/run/file/a/new"):
        assert refused(roots.writable, ANN, text).kind.status == 404
        assert refused(roots.recheck, text, target=True).kind.status == 404


def test_folders_that_are_listed(roots: Roots, root: Path) -> None:
    assert roots.folder(ANN, "data", "") == locate(root)
    assert roots.folder(ANN, "data", "run") == locate(root / "run")
    for where, prefix in (("hidden", ""), ("data", "outside"), ("data", "no"), ("none", "")):
        assert refused(roots.folder, ANN, where, prefix).kind.status == 404


def test_a_link_that_was_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    root = build(tmp_path)
    for lookup in LOOKUPS:
        roots = roots_of({"data": root}, lookup)
        (root / "run" / "late").mkdir()
        assert roots.readable(ANN, "data/run/late/x") == locate(root / "run/late/x")
        (root / "run" / "late").rmdir()
        (root / "run" / "late").symlink_to(tmp_path / "secret")
        assert refused(roots.recheck, "data/run/late/x").kind.status == 404
        (root / "run" / "late").unlink()


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    root = build(tmp_path)
    (tmp_path / "link").symlink_to(root)
    for lookup in LOOKUPS:
        roots = roots_of({"data": tmp_path / "link"}, lookup)
        assert roots.readable(ANN, "data/latest") == locate(root / "run/1000")


def test_the_kernel_is_asked_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_root, "is_supported", lambda: True)
    assert best_lookup() is lookup_by_kernel
    monkeypatch.setattr(local_root, "is_supported", lambda: False)
    assert best_lookup() is lookup_by_walk


NAMES = st.sampled_from([*LINKS, "run", "1000", "d", "file", "up", "out", "key", "new", "etc", "secret", "data"])  # fmt: skip
ODD = st.sampled_from(["..", ".", "", "%2e%2e", "%2f", "x|y", "?", "#", ";", "~", "a:b", "a@b", "\\", "\0", "\n", "file:", "ü", "\ud800"])  # fmt: skip
TEXTS = st.one_of(
    st.lists(NAMES, min_size=1, max_size=7).map(lambda names: "data/" + "/".join(names)),
    st.lists(NAMES | ODD, max_size=7).map(lambda names: "data/" + "/".join(names)),
    st.lists(NAMES | ODD | st.text(max_size=5), max_size=7).map("/".join),
    st.text(max_size=40),
    st.text(max_size=20).map(lambda text: f"data/{text}"),
)
FUZZ = fuzzing(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(roots: Roots, text: str, target: bool) -> Path | int:
    try:
        return Path(roots.recheck(text, target=target).path)
    except ProblemError as problem:
        assert problem.kind.status in (404, 422)
        return problem.kind.status


@FUZZ
@given(TEXTS, st.booleans())
@example("data/run/up/outside/key", False)
@example("data/through_file", False)
def test_nothing_ever_leads_out_and_both_lookups_agree(root: Path, text: str, target: bool) -> None:
    roots = roots_of({"data": root}, lookup_by_kernel)
    found = outcome(roots, text, target)
    assert outcome(roots_of({"data": root}, lookup_by_walk), text, target) == found
    if isinstance(found, int):
        return
    assert found == root or root in found.parents
    above = found.parent if target else found
    assert os.path.realpath(above) == str(above)  # no link is left in it, and none leads out
    assert ".." not in found.parts
    if not target and found.exists():
        assert found.samefile(root.joinpath(*parts(text)[1]))


@FUZZ
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=4)), max_size=4), st.lists(st.sampled_from("abc"), min_size=1, max_size=5))  # fmt: skip
def test_links_of_any_shape(
    tmp_path_factory: pytest.TempPathFactory,
    links: list[tuple[str, list[str]]],
    names: list[str],
) -> None:
    root = tmp_path_factory.mktemp("t") / "data"
    (root / "a" / "b").mkdir(parents=True)
    for place, (name, leads) in zip(
        (root, root / "a", root / "a" / "b", root), links, strict=False
    ):
        if not os.path.lexists(place / name):
            (place / name).symlink_to("/".join(leads) or ".")
    agree(root, names)


def agree(root: Path, names: list[str]) -> None:
    outcomes = {look(lookup, str(root), tuple(names)) for lookup in LOOKUPS}
    assert len(outcomes) == 1


def look(lookup: Lookup, base: str, names: tuple[str, ...]) -> str:
    try:
        return str(lookup(base, names))
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "refused"


@given(st.text(max_size=8))
def test_names_that_are_listed_can_be_asked_for(name: str) -> None:
    try:
        parts(f"data/{name}")
        whole = "/" not in name
    except ProblemError:
        whole = False
    assert may_be_named(name) is whole


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a:b", "ü", "a" * 129])
def test_a_root_whose_name_no_path_could_have_is_refused(name: str) -> None:
    with pytest.raises(ReshardError, match="the settings cannot be used: roots"):
        load_settings({"roots": {name: Path("/srv")}}, None)
    assert load_settings({"roots": {"a.b-c_1": Path("/srv")}}, None).roots
