"""Templates of all hints in the code of the package, from the syntax trees.

A *template* is the text of a hint with `{}` for each interpolated value. Templates are collected from
arguments, assignments and attributes with `hint` in the name, and from the constants and functions of their
values.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import hydractl

PACKAGE = Path(hydractl.__file__).parent
DEPTH = 4
"""Number of followed references between constants and functions. The code needs at most three; doubling has
no effect."""
SUGGESTIONS = {"did_you_mean", "did_you_mean_path", "getattr"}
"""Functions whose arguments are not part of a hint's text."""

Template = tuple[Path, str]
"""File that defines the text of a hint, and the text."""


def hint_templates() -> Counter[str]:
    """Return all templates of the package, with the number of defining files."""
    templates = {
        template
        for path in sorted(PACKAGE.rglob("*.py"))
        for expression in _hint_expressions(_tree(path))
        for template in _templates(path, expression, DEPTH)
    }
    return Counter(text for _, text in templates)


def pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of all texts of a template. Long hints are shortened in the middle."""
    parts = [re.escape(part) for part in template.split("{}")]
    return re.compile(".*".join(parts), re.DOTALL)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _hint_expressions(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.keyword) and _is_hint(node.arg))
            or (isinstance(node, ast.Assign) and any(_is_hint(_name(target)) for target in node.targets))
            or (isinstance(node, ast.AnnAssign) and _is_hint(_name(node.target)) and node.value is not None)
        ):
            yield node.value


def _is_hint(name: str | None) -> bool:
    return bool(name) and ("hint" in name.lower().split("_") or name.lower().endswith("hints"))


def _name(target: ast.expr) -> str | None:
    return getattr(target, "id", None) or getattr(target, "attr", None)


def _templates(path: Path, expression: ast.expr, depth: int) -> Iterator[Template]:
    if isinstance(expression, ast.Constant | ast.JoinedStr | ast.BinOp):
        text = _text(expression)
        if text.strip("{} "):
            yield path, text
    elif isinstance(expression, ast.Name):
        for place, definition in _definitions(path, expression.id) if depth else ():
            yield from _templates(place, definition, depth - 1)
    else:
        for part in _parts(expression):
            yield from _templates(path, part, depth)


def _parts(expression: ast.expr) -> Sequence[ast.expr]:
    """Return the expressions of the possible values of an expression."""
    if isinstance(expression, ast.IfExp):
        return expression.body, expression.orelse
    if isinstance(expression, ast.BoolOp | ast.Dict):
        return expression.values
    if not isinstance(expression, ast.Call):
        return ()
    if isinstance(expression.func, ast.Attribute):
        return [expression.func.value] if expression.func.attr == "format" else ()
    return () if _name(expression.func) in SUGGESTIONS else [expression.func]


def _text(expression: ast.expr) -> str:
    """Return the text of a literal, with `{}` for computed parts."""
    if isinstance(expression, ast.Constant):
        return re.sub(r"\{[^{}]*\}", "{}", expression.value) if isinstance(expression.value, str) else ""
    if isinstance(expression, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in expression.values)
    if isinstance(expression, ast.BinOp):
        return _text(expression.left) + _text(expression.right)
    return "{}"


def _definitions(path: Path, name: str) -> Iterator[tuple[Path, ast.expr]]:
    """Yield the values of a module constant, or the results of a function, with the defining file."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_name(target) == name for target in targets) and node.value is not None:
                yield path, node.value
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            returns = (part for part in ast.walk(node) if isinstance(part, ast.Return))
            if node.returns is not None and "str" in ast.unparse(node.returns):
                yield from ((path, part.value) for part in returns if part.value is not None)
        elif isinstance(node, ast.ImportFrom):
            module = _module(node.module or "")
            for alias in node.names if module is not None else ():
                if (alias.asname or alias.name) == name:
                    yield from _definitions(module, alias.name)


def _module(name: str) -> Path | None:
    """Return the file of a module of hydractl, or None for other packages."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    places = (path.with_suffix(".py"), path / "__init__.py") if name.startswith("hydractl") else ()
    return next(filter(Path.is_file, places), None)
