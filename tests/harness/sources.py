"""The source files of ours to which addresses of a program or library belong."""

import os
import re
import subprocess

# Of the standard library, which has a folder of that name, too, nothing counts.
OURS = re.compile(r"(?!.*/(?:rustc|rustlib)/).*?/((?:crates|benches)/[^:]*):")


def source_files(program, addresses):
    """The source file for each address, where it has one: that of the innermost function of ours. Addresses are those of the program's file, as its symbols have them."""
    asked = "".join(f"{address:#x}\n" for address in addresses)
    said = subprocess.run(["addr2line", "-a", "-i", "-e", program], input=asked, stdout=subprocess.PIPE, check=True, text=True).stdout
    found, address = {}, None
    for line in said.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            address = int(line, 16)
        elif address not in found and (match := OURS.match(os.path.normpath(line))):
            found[address] = match[1]
    return found
