"""What the batched engine does not take goes to the reference engine, which takes anything."""


class Unsupported(BaseException):
    """The batched engine leaves a run to `virtual`; the message is a clause that says why.

    Not an error, and nothing that a program may catch.
    """
