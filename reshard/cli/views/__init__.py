"""The output for people: one file for each kind of answer."""
