"""Turn a recipe into a run directory."""
