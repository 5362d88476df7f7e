"""A 4-ary heap with an index, for compiled loops: a table of `records.QUEUE`, and a count.

The index (`place`) finds an item in the heap, so that its time can be changed or it be removed.
"""

# mypy: allow-untyped-defs

from numba import njit


@njit
def put(heap, count, place, at, item):
    """Put an item into a 4-ary heap of `count` items, sifting from `place` to where it belongs."""
    while True:
        first = 4 * place + 1
        if first >= count:
            break
        least = first
        for other in range(first + 1, min(first + 4, count)):
            if heap[other].at < heap[least].at:
                least = other
        if at <= heap[least].at:
            break
        heap[place].at, heap[place].item = heap[least].at, heap[least].item
        heap[heap[place].item].place = place
        place = least
    while place > 0:
        above = (place - 1) >> 2
        if heap[above].at <= at:
            break
        heap[place].at, heap[place].item = heap[above].at, heap[above].item
        heap[heap[place].item].place = place
        place = above
    heap[place].at, heap[place].item = at, item
    heap[item].place = place


@njit
def move(heap, count, item, at):
    """Insert or move an item; return the count."""
    place = heap[item].place
    if place < 0:
        place = count
        count += 1
    put(heap, count, place, at, item)
    return count


@njit
def drop(heap, count, item):
    """Remove an item, if it is in the heap; return the count."""
    place = heap[item].place
    if place < 0:
        return count
    heap[item].place = -1
    count -= 1
    if place < count:
        put(heap, count, place, heap[count].at, heap[count].item)
    return count
