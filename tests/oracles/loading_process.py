"""Runs inside the environment of torch: loads models from the places that the environment names (``answering.py`` says how).

Nothing of reshard is imported here. ``torch_process.py`` has what is asked without a server.
"""

from __future__ import annotations

import answering  # isort: skip  keeps standard output, before others print

import hub_clients
import loaders

answering.answer_all(*hub_clients.FUNCTIONS, *loaders.FUNCTIONS)
