"""limbeck: distil pre-trained language models through their hidden representations."""

__version__ = "0.1.0"
