"""Check settings that are valid alone but contradict each other.

Import `settings.problems`, which runs all checks: it yields a key path and a sentence for each
broken rule. The sentences are in refusals.toml. A check changes nothing.
"""
