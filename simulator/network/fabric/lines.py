"""Flows on lines, for compiled loops: let them on and off, and collect what to solve anew.

The next solution (`sharing.solve`) concerns the lines `touch`ed and the flows that `join`ed (the
crew) since the last one.
"""

# mypy: allow-untyped-defs
# ruff: noqa: PLR0913, PLR0917 - a kernel takes its tables one by one

from numba import njit


@njit
def touch(state, lines, line):
    """Add a line to those that the next solution concerns."""
    if lines[line].stamp != state.stamp:
        lines[line].stamp = state.stamp
        lines[state.touched].touched = line
        state.touched += 1


@njit
def join(state, flows, flow):
    """Add a flow to those that the next solution concerns."""
    if flows[flow].stamp != state.stamp:
        flows[flow].stamp = state.stamp
        flows[state.crew].crew = flow
        state.crew += 1


@njit
def add(line, rate):
    """Add a rate to those on a line, with Neumaier's compensation, so that sums never drift."""
    total = line.used + rate
    if abs(line.used) >= abs(rate):
        line.carry += (line.used - total) + rate
    else:
        line.carry += (rate - total) + line.used
    line.used = total


@njit
def bind(lines, flow, line):
    """Set the line that holds a flow back, or -1."""
    if flow.bound >= 0:
        lines[flow.bound].bound -= 1
    flow.bound = line
    if line >= 0:
        lines[line].bound += 1


@njit
def link(state, flows, lines, hops, number):
    """Add a flow to its lines."""
    flow = flows[number]
    for place in range(flow.hop, flow.hop + flow.hops):
        hop, line = hops[place], lines[hops[place].line]
        hop.before, hop.after = -1, line.first
        if line.first >= 0:
            hops[line.first].before = place
        line.first = place
        line.flows += 1
        touch(state, lines, hop.line)
    join(state, flows, number)


@njit
def unlink(state, flows, lines, hops, number, carried):
    """Remove a flow from its lines, which have `carried` so many bytes of it."""
    flow = flows[number]
    bind(lines, flow, -1)
    for place in range(flow.hop, flow.hop + flow.hops):
        hop, line = hops[place], lines[hops[place].line]
        if hop.before >= 0:
            hops[hop.before].after = hop.after
        else:
            line.first = hop.after
        if hop.after >= 0:
            hops[hop.after].before = hop.before
        line.bytes += carried
        line.flows -= 1
        if not line.per_flow:
            add(line, -flow.rate)
        if line.flows == 0:
            line.used = line.carry = 0.0
        touch(state, lines, hop.line)
