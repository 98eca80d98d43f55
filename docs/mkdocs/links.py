"""MkDocs hooks that turn the repository's pages into pages of the site.

Links in the repository's pages are relative paths to other files. The site links to no repository,
so it contains every linked file: pages of the project under their own names, any other file as a
page that shows its text, and a folder as one page with all of its files. The hooks rewrite the
links accordingly, and MkDocs checks the results. They also insert an empty line between a paragraph
and a list, which MkDocs' Markdown needs, unlike GitHub's. Any other difference between the two
renderings is a warning.

MkDocs calls the functions whose names begin with ``on_``.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from mkdocs.structure.files import File, Files, InclusionLevel

_LOG: Final = logging.getLogger("mkdocs.hooks.links")  # its warnings are errors, too
_PROJECT: Final = Path(__file__).resolve().parents[2]
_DOCS: Final = "docs/"
_LOGO: Final = _PROJECT / "src/infergate/runtime/console/page/icon.svg"
_PAGES: Final = {
    "README.md": "index.md",
    "deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "docs/decisions": "decisions/README.md",
}
"""Pages of the site whose path differs from that in the project, by project path."""
_DECISIONS: Final = "Decisions"
_SHOWN: Final = "files"
"""The folder of pages that show a file."""
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE: Final = re.compile(r"(^ *`{3,}[^\n]*\n.*?^ *`{3,}[ \t]*$)", re.DOTALL | re.MULTILINE)
_GLUED: Final = re.compile(
    r"^(?!(?:[-*]|\d+\.) |[|#>]|<!--)(\S.*\n)(?=(?:[-*]|\d+\.) )", re.MULTILINE
)
_TABLE: Final = re.compile("<table>.*?</table>", re.DOTALL)
_ROW: Final = re.compile("<tr>.*?</tr>", re.DOTALL)
_HEADING: Final = re.compile("<th[^>]*>(.*?)</th>", re.DOTALL)
_CELL: Final = re.compile("<td(?=[ >])")
_PARTS: Final = ("li", "ul", "ol", "tr", "pre", "h1", "h2", "h3", "h4")
"""HTML elements whose number must be the same on the site and on GitHub."""
_LANGUAGES: Final = {".yml": "yaml", ".py": "python", ".service": "ini", "Dockerfile": "docker"}
_PLAIN: Final = {".md", ".txt", ".svg", ""}


def on_config(config: Any) -> Any:
    """Insert all decision records into the navigation, and use GitHub's heading anchors."""
    config.mdx_configs["toc"]["slugify"] = _anchor
    for entry in config.nav:
        if _DECISIONS in entry:
            # README.md first: it becomes the section's index page.
            pages = Path(config.docs_dir).glob(entry[_DECISIONS])
            found = sorted(pages, key=lambda file: (file.name != "README.md", file.name))
            entry[_DECISIONS] = [file.relative_to(config.docs_dir).as_posix() for file in found]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/, one page for each other linked file, and the logo."""
    for path, page in _PAGES.items():
        if page not in files.src_uris:
            text = (_PROJECT / path).read_text()
            files.append(File.generated(config, page, content=text))
    linked = {path for file in files.documentation_pages() for path in _linked_files(file)}
    for path in sorted(linked):
        shown = File.generated(
            config, _page_of(path), content=_file_page(path), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(shown)
    files.append(File.generated(config, _LOGO.name, content=_LOGO.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of ``page`` to the site's pages."""
    here = _source_path(page.file)
    if page.file.src_uri.startswith(f"{_SHOWN}/"):
        return markdown

    def rewrite_link(link: re.Match[str]) -> str:
        target = _page_of(_resolved(here, link[1]))
        start = posixpath.dirname(page.file.src_uri)
        return posixpath.relpath(target, start or ".") + (link[2] or "")

    parts = _FENCE.split(markdown)  # text, fence, text, …
    parts[::2] = [_LINK.sub(rewrite_link, _GLUED.sub(r"\1\n", text)) for text in parts[::2]]
    return "".join(parts)


def _anchor(heading: str, _separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Label the cells of tables with their headings, which narrow screens show beside them.

    Warn if GitHub renders a different number of elements. Most differences are paragraphs or lists
    inside a list item that are indented by less than four spaces."""
    if not page.file.src_uri.startswith(f"{_SHOWN}/"):
        github_html = MarkdownIt().enable("table").render(page.file.content_string)
        for part in _PARTS:
            here, on_github = (
                len(re.findall(rf"<{part}[ >]", text)) for text in (html, github_html)
            )
            if here != on_github:
                text = "%s: %d <%s> elements on the site, but %d on GitHub"
                _LOG.warning(text, _source_path(page.file), here, part, on_github)
    return _TABLE.sub(_with_labels, html)


def _with_labels(table: re.Match[str]) -> str:
    headings = _HEADING.findall(table[0])
    labels = [re.sub("<[^>]*>", "", each).replace('"', "&quot;") for each in headings]

    def label_cells(row: re.Match[str]) -> str:
        names = iter(labels)
        return _CELL.sub(lambda _: f'<td data-label="{next(names, "")}"', row[0])

    return _ROW.sub(label_cells, table[0])


def _source_path(file: File) -> str:
    """Return the path in the project of a page's source."""
    own = _DOCS + file.src_uri
    sources = {page: path for path, page in _PAGES.items() if (_PROJECT / path).is_file()}
    return own if (_PROJECT / own).is_file() else sources.get(file.src_uri, own)


def _resolved(here: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def _page_of(path: str) -> str:
    """Return the path of the site's page for the project path ``path``."""
    if path in _PAGES:
        return _PAGES[path]
    if path.startswith(_DOCS) and (_PROJECT / path).is_file():
        return path.removeprefix(_DOCS)
    return f"{_SHOWN}/{path}.md"


def _linked_files(file: File) -> Iterator[str]:
    """Yield the linked project paths that need a page which shows them."""
    for link in _LINK.finditer(file.content_string):
        path = _resolved(_source_path(file), link[1])
        if _page_of(path).startswith(f"{_SHOWN}/") and (_PROJECT / path).exists():
            yield path


def _file_page(name: str) -> str:
    """Return the page that shows a file, or all files of a folder."""
    path = _PROJECT / name
    if path.is_file():
        return f"# {name}\n\n{_fenced(path)}"
    parts = [f"# {name}/\n"]
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for file_name in sorted(names):
            file = Path(folder) / file_name
            parts.append(f"## {file.relative_to(path).as_posix()}\n\n{_fenced(file)}")
    return "\n".join(parts)


def _fenced(file: Path) -> str:
    language = _LANGUAGES.get(file.suffix or file.name, file.suffix.removeprefix("."))
    if file.suffix in _PLAIN and file.name not in _LANGUAGES:
        language = "text"
    return f"````{language}\n{file.read_text()}````\n"
