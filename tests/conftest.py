"""What every test session sets up, before anything imports jax or Keras."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.campaigns import CAMPAIGN, USUAL

if TYPE_CHECKING:
    from tests.emulators.buckets import Bucket
    from tests.emulators.hub import Hub
    from tests.emulators.server import Server
    from tests.oracles.oracle import Oracle

# Meshes need devices: jax splits the CPU into eight.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
# No test needs an accelerator, and looking for one takes seconds.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Keras runs on jax here, whatever else is installed.
os.environ.setdefault("KERAS_BACKEND", "jax")
# jax keeps what it compiles for all processes of the tests, and for the next run: Keras, Flax and the demo compile the same steps
# each time, which takes two thirds of their time. The limit is never reached; with one, processes lock the folder, so that none
# reads what another still writes.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(4 << 30))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# numpy begins a thread for each processor, which spins for a while: a fifth of what each process takes to import it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tables fill the width of the terminal, and tests compare their text.
os.environ["COLUMNS"] = "120"
# Hypothesis gives examples no deadline, which would measure how busy the machine is. By default a few examples, always the
# same, so that a change fails or passes for its own reasons; a campaign looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile(USUAL, _PATIENT, max_examples=20, derandomize=True)
settings.register_profile(CAMPAIGN, _PATIENT, max_examples=300, derandomize=False)
settings.load_profile(USUAL)


_SLOW_ROOMS = frozenset({
    "benchmarks", "clients", "deploy", "docs", "earlier", "emulators", "executors", "oracles", "robustness", "sabotage", "server",
    "test_install.py", "test_readme.py",
})  # fmt: skip
_SLOW_GROUPS = frozenset(
    {"live-processes", "memory", "process_group", "restore-budget", "restore-processes"}
)
_SLOW_FIXTURES = frozenset({
    "azurite", "azurite_bucket", "cloud", "gcs_bucket", "gcs_server", "hub", "moto", "moto_bucket", "s3_bucket", "s3_server", "tensorflow",
    "torch",
})  # fmt: skip
"""The fixtures and rooms that ``--quick`` leaves out: services, browsers, clusters, oracles, buckets, crashes, and processes whose memory is measured."""

_LONG_GROUPS = frozenset({
    "chromium", "deploy", "examples", "memory", "ray", "readme", "torch", "walk", "tests/docs/test_pages.py",
})  # fmt: skip
"""A worker is busy with each of these for more than a minute, however few its tests are."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--campaigns`` and ``--quick``, which ``make campaigns`` and ``make quick`` give."""
    group = parser.getgroup("how much to test")
    group.addoption(
        "--campaigns",
        action="store_true",
        help="also tests marked campaign, and many examples of Hypothesis",
    )
    group.addoption(
        "--quick",
        action="store_true",
        help="no service, browser, cluster, oracle, emulator of others, or page of the docs",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any module of tests is imported: decorators read the profile."""
    if config.getoption("campaigns"):
        settings.load_profile(CAMPAIGN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three for two cores: a third of the time, a test waits for a disk, a server or a process that it has stopped."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Rooms that ``--quick`` leaves out are not even imported, unless a command names them."""
    return True if config.getoption("quick") and _room(collection_path) in _SLOW_ROOMS else None


def _room(path: Path) -> str:
    """The folder of ``tests/`` in which a file is, or its own name."""
    return next(iter(path.relative_to(Path(__file__).parent).parts), "")


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    if item.get_closest_marker("campaign") and not config.getoption("campaigns"):
        return False
    is_slow = _room(item.path) in _SLOW_ROOMS or _group(item) in _SLOW_GROUPS
    is_slow |= not _SLOW_FIXTURES.isdisjoint(_fixtures(item))
    return not (is_slow and config.getoption("quick"))


def _fixtures(item: pytest.Item) -> Iterator[str]:
    """The fixtures of a test, and those that a parameter names."""
    yield from getattr(item, "fixturenames", ())
    parameters = getattr(item, "callspec", None)
    if parameters is not None:
        yield from (one for one in parameters.params.values() if isinstance(one, str))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the options do, and keeps each file's tests on one worker of pytest-xdist, which makes what they share once.

    Each file is a group unless a mark names one. Long and large groups begin first, so that small ones fill the workers at the end
    (with ``--no-loadscope-reorder``, xdist takes the groups in this order).
    """
    left_out = [item for item in items if not _is_wanted(item, config)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _is_wanted(item, config)]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if hasattr(config, "workerinput"):
        sizes = Counter(map(_group, items))
        items.sort(
            key=lambda item: (_group(item) not in _LONG_GROUPS, -sizes[_group(item)], _group(item))
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Without the collector of garbage, which looks through the same modules and tests again and again, for a quarter of the time."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            _import_own_share(session.config)
        return (yield)
    finally:
        gc.enable()


def _import_own_share(config: pytest.Config) -> None:
    """Each worker of a whole run first imports some of the test files, so that each finds most of them compiled by another.

    In a fresh checkout pytest rewrites the assertions of all of them, which takes as long as all else before the first test.
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number, workers = int(config.workerinput["workerid"][2:]), config.workerinput["workercount"]  # type: ignore[attr-defined]
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py"))[number::workers]:
        is_left_out = config.getoption("quick") and _room(path) in _SLOW_ROOMS
        if not is_left_out and not (path.parent / "__init__.py").exists():
            with suppress(Exception):  # is found again by what collects, and told there
                import_module(".".join(path.relative_to(tests.parent).with_suffix("").parts))


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def pytest_collection_finish() -> None:
    """Nothing that collecting has made goes before the end; to look through it takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _syncs_do_not_wait() -> Iterator[None]:
    """No test cuts the power, and waiting for disks takes a fifth of the time; tests that look at syncs replace this again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[Oracle]:
    """The real TensorFlow, started for the first test that asks for it."""
    from tests.oracles.oracle import Oracle

    oracle = Oracle("tensorflow")
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def torch() -> Iterator[Oracle]:
    """The real torch, with transformers, started for the first test that asks for it."""
    from tests.oracles.oracle import Oracle

    oracle = Oracle("torch")
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def cloud(s3_server: Server, gcs_server: Server) -> Iterator[Oracle]:
    """The clients of clouds that users have, stock Orbax among them, which reach ``s3_server`` and ``gcs_server``."""
    from tests.emulators.buckets import gcs_environment, s3_environment
    from tests.oracles.oracle import Oracle

    addresses = s3_environment(s3_server.url) | gcs_environment(gcs_server.url)
    oracle = Oracle("cloud", variables=addresses)
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """S3 with checked checksums and faults, in this process."""
    from tests.emulators.buckets import fake_s3

    with fake_s3() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    """GCS in both of its APIs, with faults, in this process."""
    from tests.emulators.buckets import fake_gcs

    with fake_gcs() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket on ``s3_server``, whose address and credentials are in the environment."""
    from tests.emulators.buckets import lend

    with lend(s3_server, "s3", monkeypatch) as bucket:
        yield bucket


@pytest.fixture
def gcs_bucket(gcs_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket on ``gcs_server``, whose address and credentials are in the environment."""
    from tests.emulators.buckets import lend

    with lend(gcs_server, "gs", monkeypatch) as bucket:
        yield bucket


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of models, which huggingface_hub reaches in this process and in programs; its cache and its token are those of the test."""
    from tests.emulators.hub import lend

    with lend(tmp_path / "hf", monkeypatch) as lent:
        yield lent


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of moto, an emulator of S3 that is not this project's."""
    from tests.emulators import processes

    with processes.moto() as url:
        yield url


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The address of Azurite, an emulator of Azure Blob Storage."""
    from tests.emulators import processes

    with processes.azurite() as url:
        yield url


@pytest.fixture
def moto_bucket(moto: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket on moto, whose address and credentials are in the environment."""
    from tests.emulators import buckets

    bucket = buckets.Bucket("s3", buckets.next_name(), buckets.s3_environment(moto))
    buckets.set_environment(bucket, monkeypatch)
    buckets.create_on_moto(bucket)
    return bucket


@pytest.fixture
def azurite_bucket(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty container on Azurite, whose address and credentials are in the environment."""
    from tests.emulators import buckets

    bucket = buckets.Bucket("az", buckets.next_name(), buckets.azure_environment(azurite))
    buckets.set_environment(bucket, monkeypatch)
    buckets.create_on_azurite(bucket)
    return bucket


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``small_tree`` as the StandardCheckpointer saves it."""
    from tests.orbax_trees import save_standard, small_tree

    root = tmp_path_factory.mktemp("small")
    yield save_standard(root / "checkpoint", small_tree())
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def dirty_buffers() -> Iterator[None]:
    """Fills buffers with 0xAB when they are taken, so that bytes that nobody writes are never right by chance."""
    from reshard.engine.buffers import Arena

    take = Arena.take

    def dirty(arena: Arena, nbytes: int) -> memoryview:
        memory = take(arena, nbytes)
        memory[:] = 0xAB
        return memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "take", dirty)
        yield
