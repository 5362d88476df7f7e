"""What the batched engine does not take goes to the reference engine, which takes anything."""


class HandOver(Exception):  # noqa: N818 - not an error: the numbers come from elsewhere
    """The batched engine leaves a run to `virtual`; the message is a clause that says why."""
