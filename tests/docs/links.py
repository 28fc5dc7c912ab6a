"""Links, chapters and included files of the documents lead somewhere."""

import os
import re

from harness.report import Failed

LINK = re.compile(r"\]\(([^)\s]+)\)")
INCLUDE = re.compile(r"\{\{#(?:include|rustdoc_include) ([^}:\s]+)(?::(\w+))?[^}]*\}\}")


def without_code(text):
    """Blocks and pieces of code have no links."""
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """The names of headings, as GitHub and mdBook make them."""
    found = {}
    names = set()
    for heading in re.findall(r"^#+\s+(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def whole(path):
    """A document with those that it includes."""
    with open(path) as opened:
        text = opened.read()
    folder = os.path.dirname(path)
    return INCLUDE.sub(lambda found: whole(os.path.join(folder, found.group(1))) if found.group(1).endswith(".md") else "", text)


def check(root, files):
    """Links within the repository; those to other hosts are not followed."""
    bad = []
    for file in files:
        with open(os.path.join(root, file)) as opened:
            text = opened.read()
        for target in LINK.findall(without_code(text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            place = os.path.normpath(os.path.join(root, os.path.dirname(file), path)) if path else os.path.join(root, file)
            if not os.path.exists(place):
                bad.append(f"{file}: there is no {target}")
            elif anchor and place.endswith(".md"):
                if anchor not in anchors(whole(place)):
                        bad.append(f"{file}: there is no heading for {target}")
        for path, part in INCLUDE.findall(text):
            place = os.path.normpath(os.path.join(root, os.path.dirname(file), path))
            if not os.path.exists(place):
                bad.append(f"{file}: there is no {path} to include")
            elif part:
                with open(place) as opened:
                    if f"ANCHOR: {part}" not in opened.read():
                        bad.append(f"{file}: {path} has no part {part}")
    if bad:
        raise Failed("\n".join(bad))
    return f"{len(files)} files"


def chapters(root, book, files):
    """Every page of the book is in its summary, once, and every chapter is a page."""
    with open(os.path.join(root, book, "SUMMARY.md")) as opened:
        listed = [os.path.normpath(os.path.join(book, target)) for target in LINK.findall(opened.read())]
    pages = [file for file in files if file.startswith(f"{book}/") and not file.endswith("SUMMARY.md")]
    missing = sorted(set(pages) - set(listed)) + sorted(set(listed) - set(pages))
    if missing or len(listed) != len(set(listed)):
        raise Failed(f"SUMMARY.md and the pages differ: {missing or 'a page is there twice'}")
    return f"{len(listed)} chapters"
