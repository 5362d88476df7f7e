"""Settings that are each possible and together are not.

Import `settings.problems`, which gathers the others: it yields a place in the file and a reason for
each contradiction. A check changes nothing and raises nothing.
"""
