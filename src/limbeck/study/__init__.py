"""Studies: methods x settings x seeds. ``description`` is what a study's file says, ``conduct`` carries it out."""
