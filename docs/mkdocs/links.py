"""What stands in the repository's pages is made the site's.

*Strategy.* Pages are written for the repository: a link names a file beside, wherever it is. The
site has no repository to point at, so it holds what its pages name: other pages of the project
under names of their own, and every other file as a page that shows it; of a folder, all its files.
The links of pages are written anew accordingly, and mkdocs checks what comes of it. Lists that
follow a paragraph get the empty line before them that mkdocs' Markdown needs, and GitHub's does
not; what else the two read differently is a warning.

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
_PARTS: Final = ("li", "ul", "ol", "tr", "pre", "h1", "h2", "h3", "h4")
"""What a page has as many of here as it has on GitHub."""
_LANGUAGES: Final = {".yml": "yaml", ".py": "python", ".service": "ini", "Dockerfile": "docker"}
_PLAIN: Final = {".md", ".txt", ".svg", ""}


def on_config(config: Any) -> Any:
    """Put all decisions where the navigation says so; name headings as GitHub does."""
    config.mdx_configs["toc"]["slugify"] = _anchor
    for entry in config.nav:
        if _DECISIONS in entry:
            # README.md first: it becomes the section's index page.
            pages = Path(config.docs_dir).glob(entry[_DECISIONS])
            found = sorted(pages, key=lambda file: (file.name != "README.md", file.name))
            entry[_DECISIONS] = [file.relative_to(config.docs_dir).as_posix() for file in found]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are elsewhere, one for each other file that is linked to, the logo."""
    for place, page in _PAGES.items():
        if page not in files.src_uris:
            text = (_PROJECT / place).read_text()
            files.append(File.generated(config, page, content=text))
    named = {place for file in files.documentation_pages() for place in _outside(file)}
    for place in sorted(named):
        shown = File.generated(
            config, _page_of(place), content=_shown(place), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(shown)
    files.append(File.generated(config, _LOGO.name, content=_LOGO.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have the links of ``page`` mean the site's pages."""
    here = _place_of(page.file)
    if page.file.src_uri.startswith(f"{_SHOWN}/"):
        return markdown

    def anew(link: re.Match[str]) -> str:
        target = _page_of(_resolved(here, link[1]))
        start = posixpath.dirname(page.file.src_uri)
        return posixpath.relpath(target, start or ".") + (link[2] or "")

    parts = _FENCE.split(markdown)  # text, fence, text, …
    parts[::2] = [_LINK.sub(anew, _GLUED.sub(r"\1\n", text)) for text in parts[::2]]
    return "".join(parts)


def _anchor(heading: str, _separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Warn of what this Markdown reads otherwise than GitHub's: lists, mostly, whose paragraphs and
    lists are indented by less than four."""
    if not page.file.src_uri.startswith(f"{_SHOWN}/"):
        other = MarkdownIt().enable("table").render(page.file.content_string)
        for part in _PARTS:
            here, there = (len(re.findall(rf"<{part}[ >]", text)) for text in (html, other))
            if here != there:
                _LOG.warning("%s: <%s>: %d, not %d", _place_of(page.file), part, here, there)


def _place_of(file: File) -> str:
    """Where in the project a page comes from."""
    own = _DOCS + file.src_uri
    elsewhere = {page: place for place, page in _PAGES.items() if (_PROJECT / place).is_file()}
    return own if (_PROJECT / own).is_file() else elsewhere.get(file.src_uri, own)


def _resolved(here: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def _page_of(place: str) -> str:
    """The site's page for ``place`` in the project."""
    if place in _PAGES:
        return _PAGES[place]
    if place.startswith(_DOCS) and (_PROJECT / place).is_file():
        return place.removeprefix(_DOCS)
    return f"{_SHOWN}/{place}.md"


def _outside(file: File) -> Iterator[str]:
    """What ``file`` links to that has to be shown."""
    for link in _LINK.finditer(file.content_string):
        place = _resolved(_place_of(file), link[1])
        if _page_of(place).startswith(f"{_SHOWN}/") and (_PROJECT / place).exists():
            yield place


def _shown(place: str) -> str:
    """The page that shows a file, or all files of a folder."""
    path = _PROJECT / place
    if path.is_file():
        return f"# {place}\n\n{_fenced(path)}"
    parts = [f"# {place}/\n"]
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted(names):
            file = Path(folder) / name
            parts.append(f"## {file.relative_to(path).as_posix()}\n\n{_fenced(file)}")
    return "\n".join(parts)


def _fenced(file: Path) -> str:
    language = _LANGUAGES.get(file.suffix or file.name, file.suffix.removeprefix("."))
    if file.suffix in _PLAIN and file.name not in _LANGUAGES:
        language = "text"
    return f"````{language}\n{file.read_text()}````\n"
