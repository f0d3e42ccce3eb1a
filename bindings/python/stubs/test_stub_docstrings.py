"""The docstrings in `_estafette.pyi` are those of the extension. The signatures there are written by hand.

`ESTAFETTE_WRITE_STUBS=1 pytest bindings/python/stubs/test_stub_docstrings.py` writes them.
"""

import ast
import inspect
import os
import pathlib

from estafette import _estafette

STUBS = pathlib.Path(__file__).parent.parent / "python/estafette/_estafette.pyi"


def definitions(tree):
    """Classes, functions and methods of the stubs by name, each with all its overloads."""
    found = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.setdefault(node.name, []).append(node)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef):
                found.setdefault(f"{node.name}.{member.name}", []).append(member)
    return found


def documented(name):
    """The docstring of the extension; None for private names, and for special methods without one of their own."""
    last = name.rpartition(".")[2]
    if last.startswith("_") and not last.endswith("__"):
        return None
    value = _estafette
    for part in name.split("."):
        # Interpreters before 3.12 have no `__buffer__`.
        value = inspect.getattr_static(value, part, *([None] if part == "__buffer__" else []))
    # Python itself documents special methods that fill a slot.
    own = value is not None and not isinstance(value, type(object.__repr__)) and last != "__new__"
    return inspect.cleandoc(value.__doc__ or "") or None if own else None


def written(node):
    return ast.get_docstring(node)


def expected(tree):
    """Pairs of a definition and its docstring. The last overload has it: Jedi looks at no other, Pylance at all."""
    for name, nodes in definitions(tree).items():
        for node in nodes:
            yield node, documented(name) if node is nodes[-1] else None


def literal(text, indent):
    raw = "r" if "\\" in text else ""
    assert '"""' not in text
    lines = text.splitlines()
    end = '"""' if len(lines) == 1 else f'\n{indent}"""'
    return f'{raw}"""' + "\n".join([lines[0], *(indent + line if line else "" for line in lines[1:])]) + end


def with_docstrings(source):
    """The stubs with the docstrings of the extension in place of theirs."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    changed = source.encode()
    pairs = [pair for pair in expected(ast.parse(source)) if pair[1] != written(pair[0])]
    for node, text in sorted(pairs, key=lambda pair: -pair[0].lineno):
        first = node.body[0]
        begin = starts[first.lineno - 1] + first.col_offset
        end = starts[first.end_lineno - 1] + first.end_col_offset
        indent = " " * (node.col_offset + 4)
        is_replaced = isinstance(first, ast.Expr)  # a docstring, or `...`
        before, after = changed[:begin].rstrip(), changed[end:]
        if not is_replaced:  # a class without a docstring
            after = f"\n{indent}".encode() + changed[begin:]
        made = f"\n{indent}{literal(text, indent)}" if text else " ..."
        changed = before + made.encode() + after
    return changed.decode()


def test_the_stubs_have_the_docstrings_of_the_extension():
    source = STUBS.read_text(encoding="utf-8")
    if "ESTAFETTE_WRITE_STUBS" in os.environ:
        source = with_docstrings(source)
        STUBS.write_text(source, encoding="utf-8")
    different = [node.name for node, text in expected(ast.parse(source)) if written(node) != text]
    assert not different, f"the docstrings of {different} differ from the sources; ESTAFETTE_WRITE_STUBS=1 writes them"


def test_everything_public_in_the_stubs_has_a_docstring():
    names = definitions(ast.parse(STUBS.read_text(encoding="utf-8")))
    names = [name for name in names if not name.rpartition(".")[2].startswith("_")]
    assert {"Engine.call", "Tensor.wait", "Tensor.shape", "devices"} <= set(names)
    assert [name for name in names if documented(name) is None] == []


def test_a_changed_and_a_missing_docstring_are_written():
    source = STUBS.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in definitions(tree)["Tensor.wait"] + definitions(tree)["Tensor"] + definitions(tree)["devices"]:
        node.body[0] = ast.Expr(ast.Constant("Stale."))
    definitions(tree)["Engine.call"][-1].body = [ast.Expr(ast.Constant(...))]
    stale = ast.unparse(tree)
    made = with_docstrings(stale)
    assert "Stale." in stale and "Stale." not in made
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(with_docstrings(source)))
