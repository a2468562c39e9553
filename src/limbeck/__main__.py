"""``python -m limbeck`` is the ``limbeck`` command."""

from limbeck.cli.main import main

main()
