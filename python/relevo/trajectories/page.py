"""A run as one HTML page that needs no other file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 70rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; }
th { text-align: left; font-weight: normal; color: #666; padding: 0.1rem 1.5rem 0.1rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; }
figure { margin: 2rem 0; }
figure svg { width: 100%; height: auto; }
figcaption { color: #666; font-size: 0.9rem; }
"""


def page(title: str, facts: Sequence[tuple[str, str]], images: Sequence[tuple[str, str]]) -> str:
    """The page: facts as a table, then each image, an SVG element, with its caption."""
    rows = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    figures = "\n".join(
        f"<figure>\n{image}\n<figcaption>{escape(caption)}</figcaption>\n</figure>" for image, caption in images
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<table>
{rows}
</table>
{figures}
</body>
</html>
"""
