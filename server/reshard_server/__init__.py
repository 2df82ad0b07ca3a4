"""The HTTP service around reshard; it imports only reshard's public names."""
