# SPDX-License-Identifier: Apache-2.0
"""Values that stand in Python source text, read without running it, for fetch_suite.py."""

import ast
import zipfile


class Unknown(ValueError):
    """An expression whose value does not stand in the text."""


def source_of(wheel: zipfile.ZipFile, name: str) -> ast.Module:
    try:
        return ast.parse(wheel.read(name).decode("utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{name} is no Python of this version ({error})") from error


def value_of(node: ast.expr, names: dict):
    """Literals, f-strings and sums over the names that are given; `self.NAME` is NAME."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        node = ast.Name(node.attr)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise Unknown(node.id)
        return names[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(str(value_of(part, names)) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return value_of(node.value, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return value_of(node.left, names) + value_of(node.right, names)
    if isinstance(node, ast.Dict):
        return {value_of(key, names): value_of(value, names)
                for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.Tuple):
        return tuple(value_of(part, names) for part in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise Unknown(ast.unparse(node)) from error


def constants_of(body: list[ast.stmt], outer: dict | None = None) -> dict:
    """What names are given at this level, by their order in the text."""
    names = dict(outer or {})
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                names[statement.targets[0].id] = value_of(statement.value, names)
            except Unknown:
                continue
    return names


def classes_of(module: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
