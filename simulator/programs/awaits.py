"""Forgotten `await`s of a program: found in its text before it runs, or named when it fails.

Without its `await` an effect does nothing. Where nothing would fail then, because the result is
dropped, returned, handed to another effect, or only tested for truth, the text must have the
`await`. Anywhere else it ends in an error about a coroutine, which `explained` turns into the same
words.
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
"""Where a coroutine passes for a result, and no error follows."""
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
        codes = (
            getattr(coroutine, "__code__", None) for coroutine in (program.worker, program.server)
        )
        files = {code.co_filename for code in codes if code}
        frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
        if not (frames and FORGOTTEN.search(str(error))):
            raise
        last = frames[-1]
        what = f"{last.line or error} takes an effect that is not awaited"
        raise InputError(_said(last.filename, last.lineno or 0, program.name, what)) from error


def _said(file: str, line: int, name: str, what: str) -> str:
    return f"{file}:{line}: program {name}: {what}; write `await` before the effect"


def _parsed(text: str) -> ast.Module:
    """Parse `text`, once more where CPython miscounts its recursion (python/cpython#106905)."""
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)


@cache
def _forgotten(function: Function) -> list[tuple[str, int, str]]:
    """Return file, line and text of each call that a function, or what it calls, does not await."""
    found, todo, seen = [], [function], set[Function]()
    while todo:
        function = inspect.unwrap(todo.pop())
        if function in seen or not inspect.iscoroutinefunction(function):
            continue
        seen.add(function)
        try:
            lines, first = inspect.getsourcelines(function)
            tree = _parsed(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):  # no text to read: `explained` is left
            continue
        known = inspect.getclosurevars(function)
        helpers = {
            name: value
            for name, value in {**known.globals, **known.nonlocals}.items()
            if inspect.iscoroutinefunction(value)
        }
        todo += helpers.values()
        file = inspect.getsourcefile(function) or function.__code__.co_filename
        found += [
            (file, first + call.lineno - 1, f"{ast.unparse(call.func)}(...)")
            for call in _calls(tree, {*helpers})
        ]
    return found


def _calls(tree: ast.Module, helpers: set[str]) -> Iterator[ast.Call]:
    """Yield the calls in a coroutine function's text that silently are not awaited."""
    outer, *inner = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    nodes = {"me", *(arg.arg for arg in outer.args.args[:1])}
    coroutines = helpers | {node.name for node in inner}
    for parent in ast.walk(tree):
        handed = isinstance(parent, ast.Call) and _method(parent.func, nodes)
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Call) and (handed or isinstance(parent, SILENT)):
                named = isinstance(node.func, ast.Name) and node.func.id in coroutines
                if named or _method(node.func, nodes) in EFFECTS:
                    yield node


def _method(called: ast.expr, nodes: set[str]) -> str:
    """Return the name of the node's method that a call of this calls; "" for other calls."""
    match called:
        case ast.Attribute(value=ast.Name(id=name), attr=method) if name in nodes:
            return method
    return ""
