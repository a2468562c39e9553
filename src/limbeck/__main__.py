"""``python -m limbeck`` is the ``limbeck`` command."""

from limbeck.cli import main

main()
