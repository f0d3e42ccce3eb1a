"""How Sphinx makes the site: `cargo xtask site` calls it with the repository as the source folder, so the documents are the pages."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[2]

project = html_title = "Estafette"
root_doc = "docs/index"
exclude_patterns = ["target", "**/.*", ".*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "autoapi.extension", "hawkmoth"]
# A word in single backticks is code, as in Markdown.
default_role = "code"
# Types in signatures, such as `bytes`, are names of fields as well.
suppress_warnings = ["myst.header", "autoapi.python_import_resolution", "ref.python"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_copyright = False
# It fetches the pages that were found, which a browser refuses where they are files.
html_show_search_summary = False

autoapi_dirs = [str(ROOT / "bindings/python/python/estafette")]
autoapi_ignore = ["*/__main__.py"]
autoapi_root = "docs/reference"
autoapi_file_patterns = ["*.pyi", "*.py"]
autoapi_options = ["members", "undoc-members", "imported-members", "special-members", "show-inheritance"]
autoapi_add_toctree_entry = False

hawkmoth_root = str(ROOT / "bindings/c/include")
hawkmoth_autoconf = []
_headers = subprocess.run(["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip()
hawkmoth_clang = ["-std=c11", f"-I{_headers}"]

# "name: what it is", with further lines indented, is how the docstrings of the package describe an argument.
ARGUMENT = re.compile(r"(?m)^( *)(\w+(?:, \w+)*): (.+(?:\n\1 +\S.*)*)(?=\n *\n|\n?\Z|\n\1\w+(?:, \w+)*: )")


def arguments(app, what, name, object, options, lines):
    """Makes the arguments of a docstring a list of Sphinx's."""
    lines[:] = ARGUMENT.sub(r"\1:param \2: \3", "\n".join(lines)).split("\n")


def hide_lines(app, docname, source):
    """Takes the lines out of Rust's examples that its documentation hides."""
    source[0] = re.sub(r"(?ms)^```rust\n.*?^```", lambda block: re.sub(r"(?m)^# .*\n", "", block[0]), source[0])


def plain_words(app, lines, transform, options):
    """Makes what the comments of the C header have of Rust's documentation plain text."""
    text = re.sub(r"\[(`[^`]*`)\]", r"\1", "\n".join(lines))
    lines[:] = re.sub(r"(?m)^(?!- | |$)(.*)\n(?=- )", r"\1\n\n", text).split("\n")


def skip(app, what, name, object, skip, options):
    """Of the special methods, only those that say what they do, and constructors."""
    if object.short_name == "__new__":
        return object.inherited
    return skip or object.short_name.startswith("__") and not object.docstring


def setup(app):
    app.connect("source-read", hide_lines)
    app.connect("autodoc-process-docstring", arguments)
    app.connect("hawkmoth-process-docstring", plain_words)
    app.connect("autoapi-skip-member", skip)
