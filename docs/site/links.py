"""Pages of the repository outside of ``docs``: reports of papers become pages, other links become plain text."""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures of the repository that the documentation links to."""
    outside = [
        *_ROOT.glob("papers/*/README.md"),
        *_ROOT.glob("papers/*/**/*.svg"),
        *_ROOT.glob("benchmarks/results/*.svg"),
    ]
    outside += [_ROOT / "CONTRIBUTING.md", _ROOT / "CHANGELOG.md", _ROOT / "experiments" / "README.md"]
    for path in sorted(outside):
        place = path.relative_to(_ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path)))
        if path.name == "README.md":
            config.nav[5]["Evidence"].insert(2, place)  # pyright: ignore[reportOptionalSubscript]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead out of ``docs`` point to the page of the site, or become text."""
    here = PurePosixPath(page.file.src_uri).parent
    is_outside = page.file.abs_src_path is not None and not page.file.abs_src_path.startswith(config.docs_dir)
    repository = here if is_outside else "docs" / here

    def moved(link: re.Match[str]) -> str:
        mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if page.file.generated_by and not is_outside:
            return link[0]
        place = os.path.normpath(repository / target)
        site = re.sub(r"^(tutorials/.*)\.ipynb$", r"\1.md", place.removeprefix("docs/"))  # a notebook is a page there
        found = files.get_file_from_path(site)
        if found is not None and (found.is_documentation_page() or mark or site.endswith(".json")):
            return f"{mark}[{text}]({os.path.relpath(site, here)}{anchor})"
        if (_ROOT / place).exists():
            return text  # a file of the repository that is no page
        return link[0]  # the strict build reports it

    return _LINK.sub(moved, markdown)
