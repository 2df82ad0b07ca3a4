"""The commands, one file each: they turn arguments into calls and hand the answer to a view."""
