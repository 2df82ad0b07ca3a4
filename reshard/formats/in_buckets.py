"""What is not written to a bucket."""

from __future__ import annotations

from reshard.errors import PlanError
from reshard.formats.base import Form
from reshard.storage.base import Store


def refuse_database(form: Form, store: Store) -> None:
    """Raises PlanError for a target in a database, where the store does not write in place."""
    if not store.writes_in_place and form.put_bytes(0) is not None:
        raise PlanError(
            "an OCDBT database is not written to a bucket; leave it out (ocdbt), so that chunks are objects, or write to a local "
            "disk and copy the folder from there, commit_success.txt last"
        )
