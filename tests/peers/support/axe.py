"""axe-core, which checks a page for accessibility (WCAG 2.2, A and AA, and best practices)."""

from __future__ import annotations

import json
from typing import Final

from peers.support.chromium import Page
from peers.support.installed import install

_PACKAGE: Final = ("--no-deps", "axe-playwright-python==0.1.8")
"""The package of axe-core 4.12.1 (MPL-2.0). The package's Python modules are not used."""
_OPTIONS: Final = json.dumps({"resultTypes": ["violations"]})


def prepare_axe() -> str:
    """Install axe-core if it is missing, and return its source."""
    return (
        install("axe", _PACKAGE).site_packages / "axe_playwright_python" / "axe.min.js"
    ).read_text("utf-8")


async def axe_violations(page: Page) -> list[str]:
    """Return the rules that the page breaks, with the elements."""
    if not await page.eval("'axe' in window"):
        await page.eval(f"{prepare_axe()}; undefined")
    violations = await page.eval(
        f"axe.run(document, {_OPTIONS}).then((result) => result.violations)"
    )
    return [
        f"{rule['id']}: {node['html'][:120]} {node['failureSummary']}"
        for rule in violations
        for node in rule["nodes"]
    ]
