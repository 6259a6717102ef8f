"""How the docs are built: ``tox -e docs``."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

metadata = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "retrytemplate"
copyright = "the retrytemplate authors"
release = version = metadata["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "public_names",
]
exclude_patterns = ["_build"]
templates_path = []
nitpicky = False
# Two packages have a class Message: a signature that names it links to one of them.
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}

maximum_signature_line_length = 88

# A block is copied without its prompts: those of docstrings, and of a terminal.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_title = f"retrytemplate {release}"
html_search_scorer = str(HERE / "_ext" / "search_scorer.js")
pygments_style = "friendly"
pygments_dark_style = "monokai"
