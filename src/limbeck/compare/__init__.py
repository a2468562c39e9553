"""Compare finished runs in one table, with tests of their differences. Nothing here loads a model."""
