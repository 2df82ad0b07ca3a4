"""The commands, one file each: they turn arguments into calls and pass the answer to a view."""
