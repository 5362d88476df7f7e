"""Compress messages; programs use codecs only through a channel.

Import `codec` for the codecs by name, `channel` and `message_codec` to write one. A codec computes
on vectors of any array library and awaits only through the channel of its node.
"""
