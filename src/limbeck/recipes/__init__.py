"""Read, check and complete recipes; the shipped ones are in ``library``."""
