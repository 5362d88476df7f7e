"""A forgotten `await` is said with program, file and line, wherever it is forgotten."""

import inspect

import pytest

import paceline
from paceline.simulator.load.load import added_programs
from paceline.simulator.programs import awaits, catalogue
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario


async def dropped(me):
    while True:
        await me.gradient(me.start)
        me.mean(me.start)  # forgotten


async def in_arithmetic(me, *, lr: float = 0.1):
    x = me.start
    while True:
        x = x - lr * me.gradient(x)  # forgotten
        me.mark(x)


async def marked(me):
    while True:
        me.mark(me.mean(me.start))  # forgotten


async def by_name(me):
    x = me.start
    while True:
        y = me.gradient(x)  # forgotten
        x = x - y
        await me.mean(y)


async def returned(me):
    return me.mean(me.start)  # forgotten


async def exchange(me, x):
    return await me.mean(x)


async def in_a_helper(me):
    while True:
        await badly(me)


async def badly(me):
    handle = me.start_mean(me.start)
    if me.finished(handle):  # forgotten
        await me.wait(handle)


async def the_helper(me):
    while True:
        exchange(me, await me.gradient(me.start))  # forgotten


async def unpacked(me):
    loss, gradient = me.loss_and_gradient(me.start)  # forgotten
    me.mark(gradient * loss)


SILENT = dropped, marked, returned, in_a_helper, the_helper
FAILING = in_arithmetic, by_name, unpacked


def forgotten(function):
    """Return the line of the comment in a function."""
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, text in enumerate(lines) if "# forgotten" in text)


@looped("worker", SILENT)
def test_a_forgotten_await_is_named_with_its_program_file_and_line(worker):
    line = forgotten(badly if worker is in_a_helper else worker)
    with pytest.raises(paceline.InputError) as refused:
        added_programs({"mine": worker})
    message = str(refused.value)
    assert message.startswith(f"{__file__}:{line}: program mine: ")
    assert "not awaited" in message
    with pytest.raises(paceline.InputError, match="program mine"):
        added_programs({"mine": paceline.Program("mine", exchange, "", server=worker)})


async def later(me):
    waiting = me.gradient(me.start)
    x = await waiting
    for handle in [me.mean(x), me.mean(x)]:
        await handle
    both = [exchange(me, part) for part in (x, x)]
    for one in both:
        await one
    await (me.mean(x) if me.rank else exchange(me, x))
    me.mark(x.mean() + await me.mean(x))


def test_what_is_awaited_later_is_not_forgotten():
    added_programs({"mine": later})
    for program in catalogue().values():
        awaits.demand(program)


def hidden(me):
    return me.gradient(me.start)


async def by_another_function(me):
    while True:
        me.mark(me.start - hidden(me))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@looped("engine", ["virtual", "batched"])
@looped("worker", [*FAILING, by_another_function])
def test_what_fails_without_its_await_is_named_too(worker, engine):
    from paceline.simulator.engines.dispatch import run_seeds

    programs = {"mine": worker}
    world = scenario({"name": "mine"}, programs=programs)
    with pytest.raises(paceline.InputError, match=r"program mine: .* is not awaited") as refused:
        run_seeds(world, world.algorithm[0], [0], engine=engine)
    assert f"{__file__}:" in str(refused.value)
