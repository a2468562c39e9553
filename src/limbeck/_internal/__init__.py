"""Provide the plumbing that the rest of limbeck shares; nothing here is for users."""
