#!/usr/bin/env python3
"""A preprocessor of mdBook: pages that include a file of the repository's root have its links, which count from there."""

import functools
import json
import os
import posixpath
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files of the root that are pages of the book.
PAGES = {f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")} | {"README.md": "introduction.md"}


@functools.cache
def repository():
    """The address of the files that are in no book."""
    with open(os.path.join(ROOT, "Cargo.toml")) as file:
        return re.search(r'^repository = "([^"]+)"', file.read(), re.MULTILINE).group(1)


def target(path, folder):
    """Where a link of a page in `folder` of the book leads; paths that count from the root begin with docs/ or name a file there."""
    path, mark, anchor = path.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return path + mark + anchor
    name = path if path in PAGES or path.startswith("docs/") else posixpath.normpath(posixpath.join("docs", folder, path))
    if name in PAGES:
        name = f"docs/{PAGES[name]}"
    # A folder is a page of the book if it has one of its own.
    place = os.path.join(ROOT, name)
    is_listing = os.path.isdir(place) and not os.path.exists(os.path.join(place, "README.md"))
    if not name.startswith("docs/") or is_listing:
        return f"{repository()}/blob/main/{name}{mark}{anchor}"
    inside = posixpath.relpath(name, posixpath.join("docs", folder))
    # mdBook writes the page of a folder's README as the folder's index.
    inside = re.sub(r"(^|/)README\.md$", r"\1index.md", inside)
    return inside + mark + anchor


def mend(item):
    chapter = item.get("Chapter") if isinstance(item, dict) else None
    if chapter:
        folder = posixpath.dirname(chapter["path"] or "")
        chapter["content"] = re.sub(r"\]\(([^)\s]+)\)", lambda found: f"]({target(found.group(1), folder)})", chapter["content"])
        for inner in chapter["sub_items"]:
            mend(inner)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    # mdBook called them sections until 0.4.
    for section in book["items"] if "items" in book else book["sections"]:
        mend(section)
    json.dump(book, sys.stdout)


main()
