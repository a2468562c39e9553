"""Provide the ``limbeck`` command."""
