"""Run studies: methods x settings x seeds. ``description`` says what a file means, ``runner`` carries it out."""
