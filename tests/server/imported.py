"""Imports what a server, its command and its children use."""

import reshard_server.jobs.queue
import reshard_server.serve  # noqa: F401  imported only
from reshard_server.worker import template

import reshard.cli.app  # noqa: F401  imported only

template._import_all()
