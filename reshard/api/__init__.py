"""The public functions, by subject. Each checks its arguments, finds the checkpoint, and calls the package that does the work."""
