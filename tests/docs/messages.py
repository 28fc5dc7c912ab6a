"""docs/log.md has every message of the log, and no other."""

import glob
import os
import re

from harness.report import Failed

# The level and the text of a line of the log, in the source.
SAID = re.compile(r'\blog!\(\s*(Error|Warn|Info),\s*"((?:[^"\\]|\\.|\\\n)*)"', re.DOTALL)
ROW = re.compile(r"^\| (error|warn|info) \| `([^`]+)` \|", re.MULTILINE)


def _told(text):
    """With one sign for all that changes, as the page has it."""
    text = re.sub(r"\\\n\s*", "", text)
    text = re.sub(r"\{[^{}]*\}", "…", text)
    return re.sub(r"…+", "…", text.replace('\\"', '"'))


def said_by(root):
    """All messages of the source: pairs of a level and a text."""
    said = set()
    for path in glob.glob(os.path.join(root, "crates/*/src/**/*.rs"), recursive=True):
        with open(path) as file:
            said |= {(level.lower(), _told(text)) for level, text in SAID.findall(file.read())}
    # The macro's own documentation.
    return said - {("warn", "…")}


def check(root, page):
    said = said_by(root)
    with open(os.path.join(root, page)) as file:
        rows = ROW.findall(file.read())
    listed = set(rows)
    lines = [f"{page} lacks: {level} `{text}`" for level, text in sorted(said - listed)]
    lines += [f"{page} has what nobody says: {level} `{text}`" for level, text in sorted(listed - said)]
    if len(rows) != len(listed):
        lines.append(f"{page} has a message twice")
    if lines or not said:
        raise Failed("\n".join(lines) or "no message found in the source")
    return f"{len(said)} messages"
