"""Find missing `await`s in a program's text, or name them when the program fails.

Without its `await` an effect does nothing. If that causes no error, because the result is dropped,
returned, passed to another effect, or only tested for truth, `demand` raises an error. In all
other cases Python raises an error about a coroutine, which `explained` turns into the same
message.
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

from ..errors import InputError
from .effects import Node
from .program import Program

EFFECTS = {
    name
    for name, effect in vars(Node).items()
    if get_origin(getattr(effect, "__annotations__", {}).get("return")) is Awaitable
}
SILENT = ast.Expr | ast.Return | ast.If | ast.While | ast.BoolOp | ast.UnaryOp
"""Nodes around a call that accept a coroutine without an error."""
FORGOTTEN = re.compile(r"\b(coroutine|generator)\b")

Function = Callable[..., Any]


def demand(program: Program) -> None:
    """Refuse a program that lacks an `await`. Raises InputError."""
    for function in filter(None, (program.worker, program.server)):
        for file, line, call in _forgotten(function):
            raise InputError(_words(file, line, program.name, f"{call} is not awaited"))


@contextmanager
def explained(program: Program) -> Iterator[None]:
    """Turn an error from a missing `await` into an InputError that names its line."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        codes = (
            getattr(coroutine, "__code__", None) for coroutine in (program.worker, program.server)
        )
        files = {code.co_filename for code in codes if code}
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
        if not (frames and FORGOTTEN.search(str(error))):
            raise
        last = frames[-1]
        problem = f"{last.line or error} takes an effect that is not awaited"
        raise InputError(_words(last.filename, last.lineno or 0, program.name, problem)) from error


def _words(file: str, line: int, name: str, problem: str) -> str:
    return f"{file}:{line}: program {name}: {problem}; write `await` before the effect"


@cache
def _forgotten(function: Function) -> list[tuple[str, int, str]]:
    """Return file, line and text of each call without `await`, also in helpers."""
    calls, todo, visited = [], [function], set[Function]()
    while todo:
        function = inspect.unwrap(todo.pop())
        if function in visited or not inspect.iscoroutinefunction(function):
            continue
        visited.add(function)
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError, SystemError):  # no text: `explained` applies
            continue
        variables = inspect.getclosurevars(function)
        helpers = {
            name: value
            for name, value in {**variables.globals, **variables.nonlocals}.items()
            if inspect.iscoroutinefunction(value)
        }
        todo += helpers.values()
        file = inspect.getsourcefile(function) or function.__code__.co_filename
        calls += [
            (file, first + call.lineno - 1, f"{ast.unparse(call.func)}(...)")
            for call in _calls(tree, {*helpers})
        ]
    return calls


def _calls(tree: ast.Module, helpers: set[str]) -> Iterator[ast.Call]:
    """Yield the calls in a coroutine function whose missing `await` causes no error."""
    outer, *inner = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    nodes = {"me", *(arg.arg for arg in outer.args.args[:1])}
    coroutines = helpers | {node.name for node in inner}
    for parent in ast.walk(tree):
        argument = isinstance(parent, ast.Call) and _method(parent.func, nodes)
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Call) and (argument or isinstance(parent, SILENT)):
                helper = isinstance(node.func, ast.Name) and node.func.id in coroutines
                if helper or _method(node.func, nodes) in EFFECTS:
                    yield node


def _method(called: ast.expr, nodes: set[str]) -> str:
    """Return the name of the node's method that is called; "" for anything else."""
    match called:
        case ast.Attribute(value=ast.Name(id=name), attr=method) if name in nodes:
            return method
    return ""
