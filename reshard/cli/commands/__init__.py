"""The commands, one file for each subject, as in ``reshard.api``: they turn arguments into calls and pass the answer to a view."""
