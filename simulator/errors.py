"""What goes wrong: the user's input, a program, or a run."""


class InputError(Exception):
    """The user's input is wrong: the message says where, what, and what would be right."""


class RunError(Exception):
    """A real run has failed: the message says which process, how, and what it said last."""


class ProgramError(Exception):
    """A program breaks the rules of the vocabulary: the message says which."""


class DeadlockError(ProgramError):
    """Every node of a run waits for another: the message says who waits for whom."""
