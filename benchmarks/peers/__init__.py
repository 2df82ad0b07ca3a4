"""What people use today, each a program of its own that never imports reshard."""
