"""Executors that carry one conversion on many hosts; each is a module of its own, and needs the extra of its name."""
