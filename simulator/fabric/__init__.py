"""Transfers that share lines, by plain numbers; and collectives as their messages."""
