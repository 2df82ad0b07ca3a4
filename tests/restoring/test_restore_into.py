"""Restoring into arrays that are there: the same objects, their values, and what is refused."""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.restoring import target_tree as into_module
from tests.campaigns import examples
from tests.equal import assert_same
from tests.fresh_process import run_fresh
from tests.orbax_trees import save_pytree
from tests.restoring.recorded import record

MIB = 1 << 20
DTYPES = ("float32", "bfloat16", "int4", "uint8", "bool", "float8_e4m3fn", "complex128", "int64")


def values(shape, dtype, seed=0):
    bits = np.random.default_rng(seed).integers(-8, 8, shape)
    return (bits > 0) if dtype == "bool" else bits.astype(getattr(ml_dtypes, dtype, dtype))


def refused(error, path, into, **options):
    with pytest.raises(error) as found:
        reshard.restore(path, into=into, **options)
    return str(found.value)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    tree = {"w": values((6, 4), "float32"), "layers": [{"b": values((5,), "bfloat16")}], "n": 7}
    return save_pytree(tmp_path_factory.mktemp("into") / "c", tree)


def test_the_same_tree_and_arrays_come_back_with_the_stored_values(source):
    b, w, n = np.zeros(5, ml_dtypes.bfloat16), np.zeros((6, 4), np.float32), np.zeros((), np.int64)
    tree = {"w": w, "layers": [{"b": b}], "n": n}
    reports = []
    assert reshard.restore(source, into=tree, report=reports.append) is tree
    assert tree["w"] is w
    assert tree["layers"][0]["b"] is b
    assert_same(w, values((6, 4), "float32"))
    assert_same(b, values((5,), "bfloat16"))
    assert n[()] == 7
    assert reports[0].numpy == ("layers/0/b", "n", "w")


def test_a_dict_by_name_is_a_tree_too_and_an_opened_checkpoint_takes_it(source):
    arrays = {"layers/0/b": np.zeros(5, ml_dtypes.bfloat16), "w": np.zeros((6, 4), np.float32)}
    opened = reshard.open_checkpoint(source)
    assert opened.restore(into=arrays, unexpected="ignore") is arrays
    assert_same(arrays["layers/0/b"], values((5,), "bfloat16"))
    assert_same(arrays["w"], values((6, 4), "float32"))


@st.composite
def strided(draw, shape, dtype):
    """A writable array of that shape and dtype, and the array that it is a view of."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 2, -1))) for _ in shape]
    around = [shape[d] * abs(steps[d]) + draw(st.integers(0, 1)) for d in order]
    base = np.zeros(around, getattr(ml_dtypes, dtype, dtype))
    view = base.transpose(np.argsort(order))
    view = view[(*(slice(None, None, step) for step in steps), ...)]
    return view[(*(slice(0, n) for n in shape), ...)], base


@settings(max_examples=examples(25))
@given(st.data())
def test_any_tree_of_any_views_is_filled_and_nothing_beside_them(tmp_path_factory, data):
    names = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    saved, given_, bases = {}, {}, {}
    for seed, name in enumerate(names):
        shape, dtype = data.draw(shapes), data.draw(st.sampled_from(DTYPES))
        saved[name] = values(shape, dtype, seed)
        given_[name], bases[name] = data.draw(strided(shape, dtype))
    path = tmp_path_factory.mktemp("tree") / "c"
    reshard.save(path, saved, compression=data.draw(st.sampled_from(("none", "zstd"))))
    reshard.restore(path, into={"inner": [given_]}, rename=[("^", "inner/0/")])
    for name, array in given_.items():
        assert_same(array, saved[name])
        written, expected = (x.reshape(-1).view(np.uint8) for x in (bases[name], saved[name]))
        assert np.count_nonzero(written) == np.count_nonzero(expected)


def test_chunks_of_many_sizes_fill_transposed_and_mapped_arrays(tmp_path):
    wanted = values((300, 700), "float32", 3)
    reshard.save(tmp_path / "c", {"w": wanted, "v": wanted}, chunk_bytes=64 << 10)
    mapped = np.memmap(tmp_path / "mapped", np.float32, "w+", shape=(300, 700))
    arrays = {"w": mapped, "v": np.zeros((700, 300), np.float32).T}
    reshard.restore(tmp_path / "c", into=arrays)
    mapped.flush()
    assert_same(np.fromfile(tmp_path / "mapped", np.float32).reshape(300, 700), wanted)
    assert_same(arrays["v"], wanted)


def test_a_dtype_follows_the_rules_of_like(source):
    wide = {"layers": [{"b": np.zeros(5, np.float32)}]}
    reshard.restore(source, into=wide, unexpected="ignore")
    assert_same(wide["layers"][0]["b"], values((5,), "bfloat16").astype(np.float32))
    narrow = {"w": np.zeros((6, 4), ml_dtypes.bfloat16)}
    text = refused(reshard.TreeError, source, narrow, unexpected="ignore")
    assert "w is float32, but bfloat16 is asked for; cast=[('w', 'bfloat16')] converts it" in text
    assert not narrow["w"].any()
    reshard.restore(source, into=narrow, unexpected="ignore", cast=[("w", "bfloat16")])
    assert_same(narrow["w"], values((6, 4), "float32").astype(ml_dtypes.bfloat16))


def test_one_error_names_everything_that_does_not_fit(source):
    tree = {"w": np.zeros((4, 6), np.float32), "new": np.zeros(3, np.int8), "n": np.zeros((), "f4")}
    assert refused(reshard.TreeError, source, tree).splitlines() == [
        f"the request does not fit the checkpoint {source}:",
        "  asked for, but not in the checkpoint: 1 (rename= gives stored leaves other names, missing='keep' leaves "
        "these as they are)",
        "    new (int8 of shape [3])",
        "  in the checkpoint, but not asked for: 1 (unexpected='ignore' leaves them out, and so does drop=)",
        "    layers/0/b (bfloat16 of shape [5])",
        "  of another shape: 1",
        "    w has shape [6, 4], but [4, 6] is asked for",
        "  of another dtype: 1",
        "    n is int64, but float32 is asked for; cast=[('n', 'float32')] converts it",
    ]


def test_what_the_checkpoint_lacks_stays_as_it_is(source):
    tree = {"w": np.zeros((6, 4), np.float32), "new": np.full(3, 9)}
    reshard.restore(source, into=tree, missing="keep", unexpected="ignore")
    assert_same(tree["new"], np.full(3, 9))
    assert_same(tree["w"], values((6, 4), "float32"))


def test_leaves_that_cannot_change_in_place_are_named_with_what_to_do(source):
    readonly = np.zeros((6, 4), np.float32)
    readonly.setflags(write=False)
    broadcast = np.lib.stride_tricks.as_strided(np.zeros(4), (6, 4), (0, 8))
    variable = reshard.ShardedVariable([np.zeros((3, 4), np.float32)] * 2)
    leaves = {
        "a": (jnp.zeros(3), "a jax array, which cannot change in place (give it as like=)"),
        "b": (
            jax.ShapeDtypeStruct((3,), jnp.float32),
            "a jax struct, which cannot change in place (give it as like=)",
        ),
        "c": (readonly, "a read-only array (give one that can be written; a file is mapped so by mode='r+')"),
        "d": (variable, "a ShardedVariable, whose shards are never changed in place (give it as like=)"),
        "e": (3, "a number, which cannot change in place (give a numpy array of shape [])"),
        "f": (np.float32(3), "a number, which cannot change in place (give a numpy array of shape [])"),
        "g": ("x", "a string, which cannot change in place (leave it out, and say unexpected='ignore')"),
        "h": (broadcast, "an array whose elements overlap in memory (give a copy of it)"),
        "i": (np.zeros(3, ">f4"), "an array in the other byte order, >f4 (give one of dtype float32)"),
        "j": (np.zeros(3, object), "an array of dtype object, which no checkpoint has"),
        "k": (np.ma.zeros(3), "a masked array (give its .data)"),
        "l": ({1}, "of type set"),
    }  # fmt: skip
    for name, (leaf, reason) in leaves.items():
        text = refused(reshard.TreeError, source, {name: leaf})
        assert text == (
            f"into has a leaf that cannot be filled in place: {name} is {reason}; expected numpy arrays that can "
            "be written"
        )
    text = refused(reshard.TreeError, source, {name: leaf for name, (leaf, _) in leaves.items()})
    assert text.startswith("into has 12 leaves that cannot be filled in place: a is a jax array")
    assert "; and 2 more; expected numpy arrays" in text


def test_arrays_that_share_memory_are_refused_by_name_but_neighbours_are_not(tmp_path):
    wanted = {"x": values((8, 4), "int64", 1), "y": values((8, 4), "int64", 2)}
    reshard.save(tmp_path / "c", wanted)
    base = np.zeros((8, 12), np.int64)
    overlap = "the arrays 'x' and 'y' of into overlap in memory, so that one would overwrite the other; give each its own"
    for x, y in (
        (base[:, :4], base[:, 3:7]),
        (base[:, :4], base[:, :4]),
        (base[:, :8:2], base[:, 6:10]),
    ):
        assert refused(reshard.TreeError, tmp_path / "c", {"y": y, "x": x}) == overlap
    assert not base.any()
    for x, y in ((base[:, :8:2], base[:, 1:8:2]), (base[::-1, 8:], base[:, 4:8])):
        reshard.restore(tmp_path / "c", into={"x": x, "y": y})
        assert_same(x, wanted["x"])
        assert_same(y, wanted["y"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("like", {"w": np.zeros(1)}),
        ("layout", {"w": None}),
        ("partition", 2),
        ("axis", 0),
        ("partition_strategy", "div"),
        ("devices", []),
    ],
)
def test_into_goes_alone(source, name, value):
    text = refused(reshard.PlanError, source, {"w": np.zeros(1)}, **{name: value})
    assert text == (
        f"into= was given together with {name}=, but the arrays of into already say where everything goes; leave "
        "out one of them. into= can be combined with select, drop, rename, cast, missing, unexpected, max_memory, workers, "
        "verify, progress and report"
    )


def test_an_error_midway_says_that_the_arrays_are_mixed(tmp_path):
    arrays = {"a": values((64,), "float32", 1), "w": values((64, 64), "float32", 2)}
    path = save_pytree(tmp_path / "c", arrays, use_ocdbt=False, use_compression=False)
    record(path, arrays)
    chunk = next((path / "w").glob("[0-9]*"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\x01")
    into = {name: np.zeros_like(array) for name, array in arrays.items()}
    text = refused(reshard.CorruptError, path, into)
    assert "tensor 'w': its bytes have the digest" in text
    assert text.endswith(
        "; the arrays of into may hold new and old values now; restore into them again before you use them"
    )
    assert into["w"].any()

    def stop(_progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as ended:
        reshard.restore(path, into=into, progress=stop)
    assert ended.value.__notes__ == [into_module.MIXED]


def test_a_budget_that_is_too_small_is_no_mixed_state(source):
    text = refused(reshard.MemoryBudgetError, source, {"w": np.zeros((6, 4), np.float32)},
                   unexpected="ignore", max_memory="1KiB")  # fmt: skip
    assert into_module.MIXED not in text


def test_raw_keys_fit_their_data(tmp_path):
    path = save_pytree(tmp_path / "c", {"key": jax.random.key(3)})
    into = {"key": np.zeros(2, np.uint32)}
    reshard.restore(path, into=into)
    assert_same(into["key"], jax.random.key_data(jax.random.key(3)))
    text = refused(reshard.TreeError, path, {"key": np.zeros(2, np.int64)})
    assert (
        "key is PRNG keys with data uint32 of shape [2], but int64 of shape [2] is asked for"
        in text
    )


WITHOUT_JAX = """
    import collections, json, sys
    import numpy as np, reshard
    Pair = collections.namedtuple("Pair", "mu nu")
    tree = {"opt": [Pair(np.zeros(3), (np.zeros(2),))], "none": None}
    reshard.restore(sys.argv[1], into=tree)
    circle = {}
    circle["a"] = circle
    errors = []
    for wrong in (circle, {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)}):
        try:
            reshard.restore(sys.argv[1], into=wrong)
        except reshard.TreeError as error:
            errors.append(str(error))
    print(json.dumps([tree["opt"][0].mu.tolist(), tree["opt"][0].nu[0].tolist(), "jax" in sys.modules, errors]))
"""


def test_trees_of_python_need_no_jax(tmp_path):
    Pair = collections.namedtuple("Pair", "mu nu")
    reshard.save(tmp_path / "c", {"opt": [Pair(np.arange(3.0), (np.arange(2.0),))]})
    mu, nu, has_jax, errors = run_fresh(WITHOUT_JAX, str(tmp_path / "c")).printed
    assert (mu, nu, has_jax) == ([0, 1, 2], [0, 1], False)
    assert re.match(r"the tree \(into\) contains itself, or nests more than \d+ levels", errors[0])
    assert errors[1].startswith("two leaves of the tree (into) are named 'a/b'; rename one")


PEAK = """
    import json, resource, sys
    import numpy as np, reshard
    into = {"w": np.ones((4096, 8192), np.float32)}
    reshard.restore(sys.argv[2], into={"w": np.ones((8, 8), np.float32)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reshard.restore(sys.argv[1], into=into, max_memory=sys.argv[3])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(json.dumps([grown, float(into["w"].sum())]))
"""


@pytest.mark.xdist_group("restore-budget")
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_it_takes_no_memory_beyond_the_budget(tmp_path, compression):
    wanted = np.random.default_rng(0).integers(0, 99, (4096, 8192), np.uint8).astype(np.float32)
    reshard.save(tmp_path / "large", {"w": wanted}, compression=compression)
    reshard.save(tmp_path / "small", {"w": wanted[:8, :8]}, compression=compression)
    grown, total = run_fresh(
        PEAK, str(tmp_path / "large"), str(tmp_path / "small"), "24MiB"
    ).printed
    assert total == float(wanted.sum())
    assert grown <= (24 + 8) * MIB < wanted.nbytes
