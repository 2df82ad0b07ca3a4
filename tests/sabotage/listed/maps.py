"""Sabotages of maps: elements that go elsewhere, and checks that are left out."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SABOTAGES = (
    Sabotage(
        "map-next-layer",
        "each layer of a stacked tensor gets the elements of the first",
        "reshard/maps/pattern.py",
        "            start[dim] += values[name]",
        "            start[dim] += 0",
        ("tests/maps/test_page.py::test_an_example_makes_what_it_says",),
    ),
    Sabotage(
        "map-parts-swapped",
        "the parts of a source go to those of a target in the wrong order",
        "reshard/maps/compile_rule.py",
        "zip(left, right, strict=True)",
        "zip(left[::-1], right, strict=True)",
        ("tests/maps/test_page.py::test_an_example_makes_what_it_says",),
    ),
    Sabotage(
        "map-source-twice",
        "two rules take the same tensor without a word",
        "reshard/maps/mapped.py",
        "        for name in filter(self._taken.__contains__, names):",
        "        for name in ():",
        ("tests/maps/test_errors.py::test_maps_that_do_not_fit_the_checkpoint",),
    ),
    Sabotage(
        "map-source-left",
        "a tensor that no rule takes is left out without a word",
        "reshard/maps/mapped.py",
        "        left = [name for name in self._specs if name not in self._taken]",
        "        left = list[str]()",
        ("tests/maps/test_errors.py::test_maps_that_do_not_fit_the_checkpoint",),
    ),
    Sabotage(
        "map-dimension-lost",
        "a dimension that the target lacks is left out without a word",
        "reshard/maps/pattern.py",
        "    lost = [name for name in sorted(names) if sizes[name] != 1]\n    if lost:",
        "    lost = [name for name in sorted(names) if sizes[name] != 1]\n    if False:",
        ("tests/maps/test_errors.py::test_maps_that_do_not_fit_the_checkpoint",),
    ),
    Sabotage(
        "map-tied-unchecked",
        "tensors that a map says are equal are not compared",
        "reshard/maps/mapped_checkpoint.py",
        "    return (pair for pair in pairs if known[pair[0]] != known[pair[1]])",
        "    return iter(())",
        ("tests/public/convert/by_map/test_by_map.py::test_tied_tensors_must_be_equal",),
    ),
    Sabotage(
        "map-arithmetic-twice",
        "arithmetic is done in float64, and rounded otherwise than it is proved",
        "reshard/engine/cast.py",
        "slab.astype(np.float64 if slab.dtype == np.float64 else np.float32)",
        "slab.astype(np.float64)",
        ("tests/public/convert/by_map/test_by_map.py::test_every_form_of_a_target",),
    ),
    Sabotage(
        "map-other-mesh",
        "a tensor is arranged for more ranks than the mesh has",
        "reshard/maps/given_map.py",
        "            if self.sizes.get(name, size) != size:",
        "            if False:",
        ("tests/maps/test_sizes.py::test_a_given_size_that_the_mesh_contradicts",),
    ),
    Sabotage(
        "map-refusal-lost",
        "tensors that a map refuses are converted as others",
        "reshard/maps/given_map.py",
        "        if refused:",
        "        if False:",
        ("tests/maps/test_sizes.py::test_refused_tensors",),
    ),
    Sabotage(
        "example-unproved",
        "a map that was learned is not proved on its examples",
        "reshard/maps/example/infer.py",
        "    if rules and not problems:",
        "    if False:",
        ("tests/maps/example/test_families.py::test_what_the_proof_finds_is_a_problem",),
    ),
)
