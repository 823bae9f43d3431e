"""How Sphinx builds the site: offline, and with nothing from outside in the pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions")]

# Libraries' chatter and bars are not what an example prints.
os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "DIFFUSERS_VERBOSITY": "error"}

import pixalign  # noqa: E402
from pixalign.backbones.load import hide_loading_bars  # noqa: E402

hide_loading_bars()

project, author = "pixalign", "The pixalign authors"
project_copyright = author
version = release = pixalign.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "commands",
]
exclude_patterns = ["_build", "*.j2", "gallery/*.ipynb", "gallery/*.py", "**/README.md"]
default_role = "py:obj"
nitpicky = False
suppress_warnings = ["config.cache"]  # the gallery's settings hold a function

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]  # for the page of commands

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Tensor": "Tensor"}
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "pixalign"
html_static_path = ["_static"]
html_css_files = ["pixalign.css"]
html_copy_source = False
html_show_sourcelink = False
# Pages that stand alone have no section to navigate.
html_sidebars = {name: [] for name in ("index", "faq", "security", "contributing", "changelog")}
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
}

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,  # that page would load scripts from outside
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "image_scrapers": ("gallery_pictures.scraper",),
}
