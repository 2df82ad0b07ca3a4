"""Runs inside the environment of models: an older huggingface_hub, obstore and s3fs (``answering.py`` says how).

Nothing of reshard is imported here.
"""

from __future__ import annotations

import answering  # isort: skip  keeps standard output, before others print

import bucket_clients
import hub_clients

answering.answer_all(*hub_clients.FUNCTIONS, *bucket_clients.FUNCTIONS)
