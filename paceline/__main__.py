"""`python -m paceline`: the command line."""

from .command_line import main

main()
