"""Texts outside of Markdown files, as Markdown with as many lines: the manual page, what the command says of itself, and documentation in Rust files."""

import re
import shlex
import subprocess

LIMIT_S = 60
# Requests whose words change between two fonts, without spaces.
ALTERNATING = ("BR", "RB", "BI", "IB", "IR", "RI")
# Requests that end a paragraph.
ENDING = ("PP", "RS", "RE", "TP", "IP", "br", "TH", "P", "LP")
ESCAPES = {r"\-": "-", r"\(lq": '"', r"\(rq": '"', r"\(dq": '"', r"\e": "\\", r"\&": ""}


def _plain(text):
    """Without roff's escapes."""
    text = re.sub(r"\\f[BIRP]", "", text)
    for escape, what in ESCAPES.items():
        text = text.replace(escape, what)
    return text


def _request(line):
    """The name of a request and its words."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    words = shlex.split(rest.replace("'", "\\'").replace("\\", "\\\\").replace("\\\\\\'", "\\'")) if '"' in rest else rest.split()
    return name, words


def manual(text):
    """A manual page. The synopsis and examples are no sentences."""
    lines, is_tag, quiet, section = [], False, False, ""
    for line in text.splitlines():
        name, words = _request(line) if line.startswith(".") else ("", [])
        after = []
        if name == "SH":
            section = _plain(" ".join(words))
            said = f"# {section}"
        elif name in ("EX", "nf", "EE", "fi"):
            quiet, said = name in ("EX", "nf"), ""
        elif name in ENDING:
            said = ""
        elif name:
            said = _plain(("" if name in ALTERNATING else " ").join(words))
        else:
            said = _plain(line)
        if is_tag:
            # The line behind TP stands for itself.
            after = [""]
        is_tag = name == "TP"
        hidden = quiet or section == "SYNOPSIS" and name != "SH"
        lines.append(("" if hidden else said, bool(after)))
    # A line that stands for itself becomes a heading, so that the numbers of lines stay what they are.
    return "\n".join(f"# {said}" if alone and said else said for said, alone in lines)


def commands(adverb):
    """The words of `adverb` and of each subcommand."""
    said = output(adverb, ["--help"])
    found = re.findall(r"^  (\w+) ", said.partition("\nCommands:\n")[2].partition("\n\n")[0], re.MULTILINE)
    return [[]] + [[name] for name in found if name != "help"]


def output(adverb, words):
    """What a command prints."""
    return subprocess.run([adverb, *words], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


def help_text(adverb, words):
    """What --help says."""
    return help_table(output(adverb, [*words, "--help"]))


def help_table(said):
    """Paragraphs, and tables whose columns have two spaces between them."""
    lines, is_list = [], False
    for line in said.splitlines():
        is_list = is_list and bool(line.strip()) or line.endswith(":") and not line.startswith(" ")
        if line.startswith("Usage:"):
            lines.append("")
        elif is_list or line.startswith(" "):
            cells = re.split(r"\s{2,}", line.strip().replace("|", "/"))
            lines.append(f"| {' | '.join(cells)} |")
        else:
            lines.append(line)
    return "\n".join(lines)


def printed(text):
    """What a program prints: paragraphs, and tables whose columns have two spaces between them. A line that is indented stands for itself."""
    lines = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip().replace("|", "/"))
        lines.append(f"| {' | '.join(cells)} |" if line.startswith(" ") and len(cells) > 1 else f"# {line.strip()}" if line.startswith(" ") else line)
    return "\n".join(lines)


def messages(said):
    """Messages of the log: a word stands for each part that changes."""
    return "\n".join("# " + text.replace("…", "`…`") for text in sorted(said))


def yaml(text):
    """What forms and actions say to users."""
    lines = [re.match(r"\s*(?:- )?(?:description|label|about|name): *(.*)", line) for line in text.splitlines()]
    return "\n".join(f"# {found[1]}" if found else "" for found in lines)


def rust(text):
    """The comments of a Rust file that rustdoc shows."""
    lines = []
    for line in text.splitlines():
        found = re.match(r"\s*//[/!](?!/) ?(.*)", line)
        lines.append(found.group(1) if found else "")
    return "\n".join(lines)
