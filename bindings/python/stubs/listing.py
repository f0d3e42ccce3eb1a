"""Prints the public names of the package with their signatures, for `cargo xtask api`.

It reads the sources: type stubs where there are some. Docstrings, bodies and private members are left out.
"""

import ast
import pathlib
import re

PACKAGE = pathlib.Path(__file__).parent.parent / "python/estafette"
MODULES = ["__init__", "typing"]


def source(module):
    stubs = PACKAGE / f"{module}.pyi"
    paths = (stubs, PACKAGE / f"{module}.py", PACKAGE / module / "__init__.py")
    path = next(path for path in paths if path.exists())
    body = ast.parse(path.read_text(encoding="utf-8")).body
    # Names for type checkers alone are imported at their first use.
    seen = [node.body for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [*body, *(node for nodes in seen for node in nodes)]


def names(node):
    """Names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(name)):
            return [name]
    return []


def definitions(module, name):
    """The statements that define a name: several for overloads."""
    found = [node for node in source(module) if name in names(node)]
    for node in source(module):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    found += definitions(node.module, alias.name)
    return found


def is_public(name):
    return not name.startswith("_") or (name.endswith("__") and name != "__slots__")


def shown(node):
    """The statement without what is no part of the interface."""
    if isinstance(node, ast.ClassDef):
        members = [shown(member) for member in node.body if any(map(is_public, names(member)))]
        node.body = members or [ast.Expr(ast.Constant(...))]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node.body = [ast.Expr(ast.Constant(...))]
    return node


def main():
    for module in MODULES:
        print("#", "estafette" if module == "__init__" else f"estafette.{module}")
        public = next(ast.literal_eval(node.value) for node in source(module) if "__all__" in names(node))
        for name in sorted(public):
            found = definitions(module, name)
            assert found, f"{module}.{name} is nowhere defined"
            for node in found:
                print(re.sub(r":\n +\.\.\.", ": ...", re.sub(r"\n\n+", "\n", ast.unparse(shown(node)))))


if __name__ == "__main__":
    main()
