"""Model random times (s): families, samples, mixtures, maxima, random streams.

Import `law` for any distribution that a scenario may name, `random_streams` for generators keyed by
(seed, purpose, worker), `order_statistics` for expected maxima. A distribution draws from the
generator passed to it and stores none.
"""
