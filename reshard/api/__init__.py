"""The public functions, by subject. Each checks its arguments, finds the checkpoint, and calls the room that does the work."""
