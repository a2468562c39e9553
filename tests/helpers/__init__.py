"""Hold what tests share."""
