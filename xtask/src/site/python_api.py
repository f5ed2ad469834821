"""Writes the reference of the Python package as Markdown, from its signatures and docstrings.

The argument is the directory of the package. Modules and names that start with `_` are left out,
except for the names that the package exports from them.
"""

import ast
import sys
from pathlib import Path

PACKAGE = Path(sys.argv[1])
MODULES = ("torch", "cupy", "store", "link", "channels", "ray", "transformers", "dpctl", "kernels", "numba", "triton")


def documented(node):
    """Prints the docstring of a node. Examples become listings."""
    for part in (ast.get_docstring(node) or "").split("\n\n"):
        if part.lstrip().startswith(">>>"):
            print(f"```text\n{part}\n```\n")
        elif part:
            print(part + "\n")


def signature(function):
    arguments = ast.unparse(function.args)
    for receiver in ("self, /, ", "self, ", "cls, ", "self", "cls"):
        if arguments.startswith(receiver):
            arguments = arguments.removeprefix(receiver)
            break
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{function.name}({arguments}){result}"


def is_public(node):
    named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return named and not node.name.startswith("_") and ast.get_docstring(node) is not None


def member(node):
    marks = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
    if "property" in marks:
        result = f": {ast.unparse(node.returns)}" if node.returns else ""
        print(f"**`{node.name}{result}`**\n")
    else:
        print(f"**`{signature(node)}`**\n")
    documented(node)


def item(module, node):
    print(f"### `{module}.{node.name}`\n")
    if isinstance(node, ast.ClassDef):
        documented(node)
        for inner in filter(is_public, node.body):
            member(inner)
    else:
        print(f"`{signature(node)}`\n")
        documented(node)


def definitions(path):
    """Returns the public functions and classes of a file by name."""
    tree = ast.parse(path.read_text())
    return {node.name: node for node in tree.body if is_public(node)}


def exported(path):
    """Yields the public definitions that a module has or imports from private modules, by name."""
    tree = ast.parse(path.read_text())
    own = definitions(path)
    yield from own.items()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level or not node.module:
            continue
        base = path.parent.joinpath(*[".."] * (node.level - 1), *node.module.split("."))
        files = [base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.py"]
        for file in filter(Path.is_file, files):
            found = definitions(file)
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name in found and name not in own and not name.startswith("_"):
                    yield name, found[alias.name]
            break


def main():
    print("# Python API\n")
    print("This page lists the functions and classes of the Python package. Their docstrings are its")
    print("source, so `help(crosshandle)` shows the same.\n")
    for name in ("crosshandle", *MODULES):
        path = PACKAGE / ("__init__.py" if name == "crosshandle" else f"{name}.py")
        if not path.is_file():
            continue
        module = "crosshandle" if name == "crosshandle" else f"crosshandle.{name}"
        print(f"## `{module}`\n")
        documented(ast.parse(path.read_text()))
        seen = set()
        for own, node in sorted(exported(path), key=lambda pair: pair[0].lower()):
            if own not in seen:
                seen.add(own)
                item(module, node)


main()
