"""The signal that a fast engine cannot run a program, so that the reference engine must."""


class Unsupported(BaseException):
    """Raised when an engine cannot run a program; the message completes "because ...".

    Not an `Exception`, so that no program catches it.
    """
