"""Rules by example: ``probe`` a tiny checkpoint, run a trusted script on the probes, and ``infer`` the map that it follows.

>>> from reshard import rules
>>> rules.probe("tiny", "probes")  # doctest: +SKIP
>>> found = rules.infer("probes", "out")  # doctest: +SKIP
>>> print(found.text)  # doctest: +SKIP
"""

from __future__ import annotations

from reshard.rules.by_example import check, infer, probe, recipe, recipes

__all__ = ["check", "infer", "probe", "recipe", "recipes"]
