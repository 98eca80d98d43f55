"""Parses the fenced blocks of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

COMMANDS: Final = "sh"
_NAMED: Final = re.compile(r"(?:#|//|--) ([\w./-]+\.\w+)(?:[:,;] .*)?")
_NEEDS: Final = re.compile(r"<!-- needs: ([\w, -]+) -->")


@dataclass(frozen=True)
class Block:
    """A block. ``line`` is the block's first line in the page. ``needs`` names what the block
    requires to be run. ``prints`` is the expected output, or None if the page does not show it."""

    language: str
    text: str
    line: int
    needs: frozenset[str] = frozenset()
    prints: str | None = None

    @property
    def file(self) -> str | None:
        """Return the name of the file that the block defines."""
        if self.language in {COMMANDS, "text"}:
            return None
        found = _NAMED.fullmatch(self.text.partition("\n")[0].rstrip())
        return found[1] if found else None

    @property
    def is_run(self) -> bool:
        return self.language == COMMANDS or (self.language == "python" and self.file is None)


@cache
def blocks_of(page: Path) -> list[Block]:
    """Return the blocks in order; an output block is part of the block before it."""
    blocks: list[Block] = []
    end = -1
    for block, last in _fences(page.read_text()):
        is_output = blocks and block.line - 1 <= end + 2  # at most one empty line is between
        if block.language == "text" and is_output and blocks[-1].is_run:
            blocks[-1] = replace(blocks[-1], prints=block.text)
        else:
            blocks.append(block)
        end = last
    return blocks


def _fences(text: str) -> Iterator[tuple[Block, int]]:
    """Yield each block with the last line of its fence."""
    needs: frozenset[str] = frozenset()
    for token in MarkdownIt().disable("inline").parse(text):
        if token.type in {"fence", "code_block"}:
            assert token.map is not None
            first, after = token.map
            language = (token.info.split() or [""])[0] if token.type == "fence" else ""
            yield Block(language, token.content, first + 2, needs), after
        if token.type == "html_block" and (comment := _NEEDS.fullmatch(token.content.strip())):
            needs = frozenset(re.split(r"[, ]+", comment[1].strip()))
        elif token.nesting >= 0:
            needs = frozenset()
