"""Measure what a distilled model has in common with its teacher, from run directories and their data."""
