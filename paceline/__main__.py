"""`python -m paceline`: the command line."""

from paceline.command_line import main

main()
