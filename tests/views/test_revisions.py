"""A revision tells states of a source, and options, that give other bytes; it is known without opening the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reshard
from reshard.api.sources import source_of
from reshard.api.views import view_target
from reshard.errors import PlanError, SourceChangedError
from reshard.views import checkpoint_view
from reshard.views.checkpoint_view import revision_of
from tests.views.sources import MAP, SIZES, save_source


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source(tmp_path_factory.mktemp("views") / "source")


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "source"))


def revision(source: Path, **options: object) -> str:
    chosen = source_of(source, None, None, "leave", None, None)
    return revision_of(chosen, view_target("64MiB", **options))


@pytest.mark.parametrize("options", [{}, {"map": MAP, "sizes": SIZES}, {"to": "orbax"}])
def test_it_is_that_of_the_view(source: Path, options: dict[str, object]) -> None:
    found = revision(source, **options)
    with reshard.open_view(source, **options) as view:
        assert view.revision == found
        assert len(found) == 40 and set(found) <= set("0123456789abcdef")
    assert revision(source, **options) == found
    assert revision(source, **options, file_bytes=1000) != found


def test_it_tells_states_of_the_source(source: Path) -> None:
    before = revision(source)
    reshard.fingerprint(source)
    recorded = revision(source)
    file = next(path for path in sorted(source.rglob("*")) if path.is_file())
    file.write_bytes(file.read_bytes())
    assert len({before, recorded, revision(source)}) == 3
    with reshard.open_view(source) as view:
        assert view.revision == revision(source)


def test_it_tells_states_of_the_config(source: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "none"}))
    before = revision(source, config=model)
    (model / "generation_config.json").write_text("{}")
    after = revision(source, config=model)
    assert len({revision(source), before, after}) == 3
    with reshard.open_view(source, config=model) as view:
        assert view.revision == after
        assert b"".join(view.files["generation_config.json"].read()) == b"{}"


def test_a_config_that_is_changed_while_it_is_copied_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    kept = checkpoint_view.own_folder

    def begin() -> object:
        (model / "config.json").write_text('{"later": 1}')
        return kept()

    monkeypatch.setattr(checkpoint_view, "own_folder", begin)
    with pytest.raises(SourceChangedError, match="or its config, were changed while the view was planned; ask for it again"):  # fmt: skip
        reshard.open_view(source, config=model)


def test_a_source_that_is_gone_has_one(source: Path) -> None:
    before = revision(source)
    shutil.rmtree(source)
    assert revision(source) not in ("", before)


def test_options_that_say_how_a_target_is_written_are_refused() -> None:
    with pytest.raises(PlanError, match="restart says how a target is written, and a view writes none; leave it out \\(restart\\)"):  # fmt: skip
        view_target(restart=True)
