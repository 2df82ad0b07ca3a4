"""Measurements of this project beside its peers; ``python -m benchmarks.run`` is the one that ``make bench`` runs.

| room | what it measures |
|---|---|
| ``run.py``, ``conversion/`` | conversions beside cp and Orbax; planning, several targets, more than memory |
| ``restoring/``, ``saving/`` | ``reshard.restore`` and ``reshard.save`` beside Orbax |
| ``memory/`` | peak memory against the budget |
| ``flips/`` | what verify, convert and restore make of one wrong bit |
| ``robustness/`` | kills, failing calls, hostile checkpoints and stress, by the thousand |
| ``service/`` | a server under load |
| ``trees/`` | the source of the benchmarks, in any size |
| ``peers/`` | what people use today, each a program that never imports reshard |
"""
