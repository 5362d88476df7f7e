"""Errors that users meet: wrong input, a failed real run, a program that breaks its rules."""


class InputError(Exception):
    """Raised for wrong user input; the message names place, fault and remedy."""


class RunError(Exception):
    """Raised when a real run fails; the message gives the process, its end and last output."""


class ProgramError(Exception):
    """Raised when a program breaks a rule of `effects.Node`; the message names the rule."""
