#!/usr/bin/env python3
"""Draws docs/charts/figures.svg from the tables of docs/speed.md: adverb beside the usual way, in the same run. And docs/charts/incast.svg from the table of
docs/design/congestion.md.

    draw.py           writes the chart
    draw.py --check   fails if the charts are not those of the tables
"""

import os
import re
import sys
from xml.sax.saxutils import escape

FOLDER = os.path.dirname(os.path.abspath(__file__))
PAGE, CHART = os.path.join(FOLDER, "../speed.md"), os.path.join(FOLDER, "figures.svg")
# The heading of a table, the other side, and the rows that compare with it.
GROUPS = [
    ("Within one host", "UCX in shared memory", ["8-byte write", "8-byte send, one way, both sides polling", "64 KiB / 1 MiB sends", "64 KiB writes", "1 MiB writes"]),
    ("RoCE over UDP", "raw UDP", ["8-byte send", "4 KiB sends", "1 MiB writes / reads"]),
    ("iWARP over TCP", "raw TCP", ["8-byte send", "64 KiB writes / reads"]),
]
LEFT, RIGHT, ROW, MOST = 300, 60, 22, 1.25
WIDTH = 820


def bars(section, wanted):
    """Labels, each with how many times as good as the other side: of times the inverse of the ratio."""
    for row in re.findall(r"^\| (.*) \|$", section, re.MULTILINE):
        label, figure, other = (row.split(" | ") + ["", ""])[:3]
        if not label.startswith(wanted):
            continue
        ratios = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", other.partition("×")[0])]
        if "µs" in figure:
            yield label.split(", one way")[0], 1 / ratios[0]
        else:
            yield from zip(names(label, len(ratios)), ratios)
        return


def names(label, count):
    """Of `64 KiB writes / reads` and `64 KiB / 1 MiB sends`, one for each figure."""
    if count == 1:
        return [label.partition(",")[0]]
    first, second = label.split(" / ")
    last = first.split(" ")[-1]
    return [first, f"{first.removesuffix(last)}{second}"] if last in ("writes", "sends") else [f"{first} {second.split(' ')[-1]}", second]


def chart(text):
    rows, y, place = [], 34, lambda value: LEFT + value / MOST * (WIDTH - LEFT - RIGHT)
    for heading, other, wanted in GROUPS:
        section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL).group(1)
        rows.append(f'<text x="10" y="{y + 15}" font-weight="bold">{heading}, beside {other}</text>')
        y += ROW
        for label in wanted:
            found = list(bars(section, label))
            if not found:
                sys.exit(f"docs/speed.md has no figures for {label!r} in {heading!r}")
            for name, value in found:
                rows.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
                rows.append(f'<rect x="{LEFT}" y="{y + 3}" width="{place(value) - LEFT:.1f}" height="{ROW - 6}" fill="#2f6f9f"/>')
                rows.append(f'<text x="{place(value) + 5:.1f}" y="{y + 15}">{value:.2f}</text>')
                y += ROW
        y += 8
    line = place(1)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{y + 6}" fill="white"/>',
        '<text x="10" y="20">How many times as fast as the usual way (longer is better)</text>',
        f'<line x1="{line:.1f}" y1="26" x2="{line:.1f}" y2="{y}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{line:.1f}" y="20" text-anchor="middle">as fast</text>',
        *rows,
        "</svg>\n",
    ])


def incast(text):
    """The time that each number of queue pairs takes, with the window and without."""
    found = re.findall(r"^\| ([\d]+) \| (on|off) \| ([\d.]+) ms \|", text, re.MULTILINE)
    if not found:
        sys.exit("docs/design/congestion.md has no table of incast")
    most, rows, y = max(float(time) for _, _, time in found), [], 34
    for pairs, window, time in found:
        width = float(time) / most * (WIDTH - LEFT - RIGHT - 30)
        fill = "#2f6f9f" if window == "on" else "#b0b0b0"
        rows.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{pairs} queue pairs, window {window}</text>')
        rows.append(f'<rect x="{LEFT}" y="{y + 3}" width="{max(width, 1):.1f}" height="{ROW - 6}" fill="{fill}"/>')
        rows.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + 15}">{time} ms</text>')
        y += ROW + (8 if window == "off" else 0)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{y + 6}" fill="white"/>',
        '<text x="10" y="20">Time until all queue pairs have written 1 MiB each to one host (shorter is better)</text>',
        *rows,
        "</svg>\n",
    ])


CHARTS = [(PAGE, CHART, chart), (os.path.join(FOLDER, "../design/congestion.md"), os.path.join(FOLDER, "incast.svg"), incast)]


def main():
    for page, place, draw in CHARTS:
        with open(page) as file:
            drawn = draw(file.read())
        if sys.argv[1:] == ["--check"]:
            with open(place) as file:
                if file.read() != drawn:
                    sys.exit(f"docs/charts/{os.path.basename(place)} is old: docs/charts/draw.py draws it anew")
        else:
            with open(place, "w") as file:
                file.write(drawn)


if __name__ == "__main__":
    main()
