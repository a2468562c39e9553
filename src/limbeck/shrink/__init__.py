"""Go from a table and a model to a small model in service."""
