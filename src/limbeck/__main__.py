"""Run the ``limbeck`` command: ``python -m limbeck``."""

from limbeck.cli.main import main

main()
