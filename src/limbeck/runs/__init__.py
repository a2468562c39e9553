"""Name and read the files of run directories, without torch."""
