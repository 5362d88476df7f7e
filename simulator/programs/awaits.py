"""Forgotten `await`s of a program: found in its text before it runs, or named when it fails.

Without its `await` an effect does nothing, and most engines cannot tell. So each call of an effect,
or of a coroutine function, in a program's text must be awaited: at once, or through the name or the
list that takes it. What the text does not show ends in an error about a coroutine, which
`explained` turns into the same words.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from traceback import extract_tb
from typing import Any, get_origin

from paceline.simulator.errors import InputError
from paceline.simulator.programs.effects import Node
from paceline.simulator.programs.program import Program

EFFECTS = {
    name
    for name, each in vars(Node).items()
    if get_origin(getattr(each, "__annotations__", {}).get("return")) is Awaitable
}
LATER = ast.List | ast.Tuple | ast.Dict | ast.ListComp | ast.GeneratorExp | ast.DictComp
"""Expressions that may hold calls to be awaited later."""
FORGOTTEN = re.compile(r"\b(coroutine|generator)\b")

Function = Callable[..., Any]


def demand(program: Program) -> None:
    """Raise InputError where a program forgets to await."""
    for function in filter(None, (program.worker, program.server)):
        for file, line, call in _forgotten(function):
            raise InputError(_said(file, line, program.name, f"{call} is not awaited"))


@contextmanager
def explained(program: Program) -> Iterator[None]:
    """Raise InputError for an error of a program that took a coroutine for its result."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        codes = (getattr(each, "__code__", None) for each in (program.worker, program.server))
        files = {code.co_filename for code in codes if code}
        frames = [each for each in extract_tb(error.__traceback__) if each.filename in files]
        if not (frames and FORGOTTEN.search(str(error))):
            raise
        last = frames[-1]
        what = f"{last.line or error} takes an effect that is not awaited"
        raise InputError(_said(last.filename, last.lineno or 0, program.name, what)) from error


def _said(file: str, line: int, name: str, what: str) -> str:
    return f"{file}:{line}: program {name}: {what}; write `await` before the effect"


@cache
def _forgotten(function: Function) -> list[tuple[str, int, str]]:
    """Return file, line and text of each call that a function, or what it calls, does not await."""
    found, todo, seen = [], [function], set[Function]()
    while todo:
        each = inspect.unwrap(todo.pop())
        if each in seen or not inspect.iscoroutinefunction(each):
            continue
        seen.add(each)
        try:
            lines, first = inspect.getsourcelines(each)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):  # no text to read: `explained` is left
            continue
        known = inspect.getclosurevars(each)
        helpers = {k: v for k, v in {**known.globals, **known.nonlocals}.items() if _is_helper(v)}
        todo += helpers.values()
        file = inspect.getsourcefile(each) or each.__code__.co_filename
        found += [
            (file, first + call.lineno - 1, f"{ast.unparse(call.func)}(...)")
            for call in _calls(tree, {*helpers})
        ]
    return found


def _is_helper(value: Any) -> bool:
    return inspect.isfunction(value) and inspect.iscoroutinefunction(value)


def _calls(tree: ast.Module, helpers: set[str]) -> list[ast.Call]:
    """Return the calls in a coroutine function's text that are never awaited."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.AsyncFunctionDef)]
    nodes = {arg.arg for each in functions[:1] for arg in each.args.args[:1]}
    nodes |= {arg.arg for each in functions[1:] for arg in each.args.args if arg.arg == "me"}
    helpers = helpers | {each.name for each in functions[1:]}
    parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
    awaited = set(_awaited(tree))
    return [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call)
        and _suspends(each.func, nodes, helpers)
        and not _is_awaited(each, parents, nodes, awaited)
    ]


def _awaited(tree: ast.Module) -> Iterator[str]:
    """Yield the names of what is awaited, or handed to a function that may await it."""
    loops = [each for each in ast.walk(tree) if isinstance(each, ast.For | ast.comprehension)]
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
            yield from (arg.id for arg in each.args if isinstance(arg, ast.Name))
        if isinstance(each, ast.Await):
            inner = each.value
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id
                for loop in loops:
                    if inner.id in _names(loop.target):
                        yield from _names(loop.iter)


def _names(tree: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


def _suspends(called: ast.expr, nodes: set[str], helpers: set[str]) -> bool:
    """Whether a call of this is one of an effect of the node, or of a coroutine function."""
    match called:
        case ast.Attribute(value=ast.Name(id=name), attr=effect):
            return name in nodes and effect in EFFECTS
        case ast.Name(id=name):
            return name in helpers
    return False


def _is_awaited(
    call: ast.Call, parents: dict[ast.AST, ast.AST], nodes: set[str], awaited: set[str]
) -> bool:
    """Whether a call is, or may be, awaited where it stands or where its result goes."""
    parent = parents[call]
    match parent:
        case ast.Assign(targets=targets):
            return any(awaited & _names(target) for target in targets)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            return bool(awaited & _names(target))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name not in nodes  # another function may await it; an effect does not
        case ast.IfExp():
            return isinstance(parents[parent], ast.Await)
    return isinstance(parent, ast.Await | ast.Call | ast.Lambda | LATER)
