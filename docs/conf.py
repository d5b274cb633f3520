"""Build the documentation site: `make docs`. Every page is Markdown that reads well without it."""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from functools import partial

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

import harness
from harness.benchmarks import registry
from harness.commands.parser import COMMANDS, built, parser
from harness.defaults import BENCHMARK

project = "behavior-harness"
release = harness.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/*/README.md"]
highlight_language = "none"
exclude_patterns = [".*", "build", "results"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 6  # as GitHub makes them; a link to one that does not exist fails the build

toc_object_entries_show_parents = "hide"
default_role = "literal"  # docstrings have `names` between single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = project
html_static_path = html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_math_renderer = "mathml"

NOT_UNDERSTOOD = re.compile(r">(\\|&<)")
BAR, UNSPACED = (
    re.compile(r"<mo[^>]*>(?=&#x0(?:007C|2016);)"),
    '<mo stretchy="false" lspace="0" rspace="0">',
)
FUNCTION = re.compile(r"<mi>(exp|ln|log)</mi>")  # spaces around both as in TeX
LOGGER = getLogger(__name__)
PART = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
PAGE = re.compile(r"^- \[(.+?)\]\((.+?)\.md\)", re.MULTILINE)
SETTINGS = re.compile(r"^settings of .+?(?=\n\n)", re.MULTILINE | re.DOTALL)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Make the site's contents of the lists of pages in index.md: a part for each heading."""
    if page != app.config.root_doc:
        return
    for caption, part in PART.findall(source[0]):
        if pages := "\n".join(f"{title} <{name}>" for title, name in PAGE.findall(part)):
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def add_help(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the help of every command to cli.md, and the settings of every benchmark that ships to
    that of `run`."""
    if page == "docs/cli":
        helps = [(name, help_of(name)) for name in COMMANDS]
        for name in sorted({*registry.names()} - {BENCHMARK}):
            helps += [(f"run {name}", text) for text in SETTINGS.findall(help_of("run", name))[-1:]]
        source[0] += "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in helps)


def help_of(*words: str) -> str:
    of = parser(built(words[0], words[1:]), ["--help-all"])
    of.formatter_class = partial(RawDescriptionHelpFormatter, width=88)
    return of.format_help().rstrip()


def write_formula(translator: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers show without a script; one that is not understood
    fails the build."""
    block = isinstance(node, nodes.math_block)
    made = convert(node.astext(), display="block" if block else "inline")
    if NOT_UNDERSTOOD.search(made):
        LOGGER.warning(
            "formula %s has a command that latex2mathml does not know", node.astext(), location=node
        )
    made = FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', BAR.sub(UNSPACED, made))
    translator.body.append(f'<div class="math-wrapper">{made}</div>' if block else made)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("source-read", add_help)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
