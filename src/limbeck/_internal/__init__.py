"""Plumbing that the rest of limbeck shares; nothing here is for users."""
