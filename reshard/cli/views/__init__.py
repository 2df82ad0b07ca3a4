"""What people see: one file for each kind of answer."""
