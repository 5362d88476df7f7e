"""Checks of settings that are possible alone, and impossible together.

Import `settings.problems`, which gathers the others: it yields a place in the file and a sentence
for each rule that is broken. The sentences are in refusals.toml. A check changes nothing.
"""
