"""Compression of what travels; a program knows only that it has a channel.

Import `codec` for the codecs by name, `channel` and `message_codec` to write one. A codec computes
on vectors of any array library and never awaits but through the channel of its node.
"""
