"""Build the documentation site: `make docs`. Every page is Markdown that reads well without it."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import harness

project = "behavior-harness"
release = harness.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/*/README.md"]
exclude_patterns = [".*", "build", "results"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 6  # as GitHub makes them; a link to one that does not exist fails the build

default_role = "literal"  # docstrings have `names` between single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"

PART = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
PAGE = re.compile(r"^- \[(.+?)\]\((.+?)\.md\)", re.MULTILINE)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Make the site's contents of the lists of pages in index.md: a part for each heading."""
    if page != app.config.root_doc:
        return
    for caption, part in PART.findall(source[0]):
        if pages := "\n".join(f"{title} <{name}>" for title, name in PAGE.findall(part)):
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def write_formula(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers show without a script."""
    block = isinstance(node, nodes.math_block)
    translator.body.append(tex2mathml(node.astext(), as_block=block))  # type: ignore[attr-defined]
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
