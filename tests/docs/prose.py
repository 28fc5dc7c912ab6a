"""The rules of docs/style.md that a program can check, for the sentences of a Markdown file."""

import re

MOST_WORDS = 30
# What a sentence must not begin with, unless it is a question.
OPENINGS = re.compile(r"^(What|Who|Whose|Whom|Whoever|Whatever|Whichever)\b")
REFUSED = {
    r"\b(simply|just|easy|easily|obviously|trivial|trivially|of course)\b": "it helps nobody who is stuck",
    r"\b(whoever|whatever|whichever|whomever)\b": "name the program, process or peer",
    r"\b(for|of|by|with|from) (who|what)\b": "a noun belongs there, not a clause",
    r"\b(NICs?)\b": "the glossary says adapter",
    r"\b(queue-pairs?|queuepairs?)\b": "the glossary says queue pair",
    r"\b(userspace|user-space)\b": "the glossary says user space",
}
# Full stops that end no sentence.
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|no|fig)\.$", re.IGNORECASE)


def units(text):
    """Pairs of a line's number and a text that stands for itself: a paragraph, an item of a list, a heading, a cell of a table."""
    fence, comment, started, gathered = None, False, 0, []

    def flush():
        nonlocal gathered
        if gathered:
            yield started, " ".join(gathered)
        gathered = []

    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        mark = re.match(r"(`{3,}|~{3,})", bare)
        if fence is not None:
            fence = None if mark and bare.startswith(fence) else fence
            continue
        if mark:
            yield from flush()
            fence = mark.group(1)
            continue
        comment = comment or bare.startswith("<!--")
        if comment:
            comment = "-->" not in bare
            continue
        item = re.match(r"([-*+]|\d+\.)\s+(.*)", bare)
        if not bare or bare.startswith(("#", "|", "{{#")) or item:
            yield from flush()
        if bare.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", bare)[1:-1]:
                yield number, cell.strip()
        elif bare.startswith("#"):
            yield number, bare.lstrip("# ")
        elif item:
            started, gathered = number, [item.group(2)]
        elif bare and not bare.startswith("{{#"):
            started = started if gathered else number
            gathered.append(bare)
    yield from flush()


def plain(text):
    """Without marks: a piece of code is one word, a link its text."""
    text = re.sub(r"``.*?``|`[^`]*`", "CODE", text)
    # A word in italics or quotation marks is spoken of, not used.
    text = re.sub(r"(?<![*\w])\*[^*]+\*(?!\*)|\"[^\"]*\"", "TERM", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*\*|(?<!\w)[*_]|[*_](?!\w)|<[^>]*>", "", text)


def sentences(text):
    parts, rest = [], ""
    for part in re.split(r"(?<=[.!?])[\")]*\s+(?=[\"(\[]?[A-Z0-9])", text):
        rest = f"{rest} {part}".strip()
        if not ABBREVIATIONS.search(rest):
            parts.append(rest)
            rest = ""
    return [part for part in [*parts, rest] if part]


def faults(text):
    """Lines, each with the number of the line and what is wrong there."""
    for number, unit in units(text):
        for sentence in sentences(plain(unit)):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > MOST_WORDS:
                yield f"{number}: {len(words)} words, at most {MOST_WORDS}: {sentence}"
            if OPENINGS.match(sentence) and not sentence.rstrip("\")").endswith("?") and len(words) > 6:
                yield f"{number}: begins with a clause as its subject: {sentence}"
            for pattern, why in REFUSED.items():
                found = re.search(pattern, sentence, 0 if "NIC" in pattern else re.IGNORECASE)
                if found:
                    yield f"{number}: {found.group(0)!r}: {why}: {sentence}"
