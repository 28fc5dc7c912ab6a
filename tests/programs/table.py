"""The table of what runs on adverb, made from the tests."""

import collections
import fnmatch
import os
import re
import shlex
import subprocess

import consumers
import crates
from harness.document import README, Part
from harness.report import Failed

PART = Part("<!-- programs: written by `tests/programs/run --document` -->\n", "<!-- end of programs -->\n")

# Whose programs they are; what is not listed is its own package.
PACKAGES = {
    "ibv_*": "ibverbs-utils",
    "ib_* raw_ethernet_*": "perftest",
    "rping ucmatose udaddy mckey cmtime rdma_* rstream riostream rcopy udpong": "rdmacm-utils",
    "ucx_* io_demo": "ucx-utils",
    "fi_*": "libfabric-bin",
    "mpirun.openmpi": "openmpi-bin",
    "mpiexec.hydra": "mpich",
    "nc.openbsd": "netcat-openbsd",
    "nc.traditional": "netcat-traditional",
    "iscsi-*": "libiscsi-bin",
    "tgtd": "tgt",
    "libiscsi.so.7": "libiscsi7",
    "libgloo.so.0": "libgloo0",
    "librpma.so.0": "librpma0",
    "dapltest": "dapl2-utils",
    "qemu-*": "qemu-system-x86",
    "libdaplofa.so.2": "libdapl2",
    "rados ceph": "ceph-common",
}
# Those of other registries, with their versions, and where they have pages.
_WHEELS = dict(wheel.split("==") for wheel in consumers.WHEELS + consumers.WHEELS_ALONE)
PAGES = {"PyPI": "https://pypi.org/project/{name}/{version}/", "crates.io": "https://crates.io/crates/{name}/{version}"}
DEBIAN = "https://packages.debian.org/bookworm/{name}"
# A package of the table, and its version, if that is said.
OF_DEBIAN = re.compile(r"\[([^]]*)\]\(" + re.escape(DEBIAN).replace(r"\{name\}", "[^)]*") + r"\)( [^ |]+)?")
OTHERS = {
    "mooncake": ("mooncake-transfer-engine-non-cuda", "PyPI"),
    "nixl": ("nixl-cu12", "PyPI"),
    "ibverbs": ("ibverbs", "PyPI"),
    **{crates.needed(name): (name, "crates.io") for name in crates.VERSIONS},
}
# What others of them need.
BESIDE = ("numpy",)
# Consumers by the names that people know, and the packages of their rows in the table: the README names each of them.
CONSUMERS = {
    "gloo": ["libgloo0"],
    "NIXL": ["nixl-cu12"],
    "Mooncake": ["mooncake-transfer-engine-non-cuda"],
    "Ceph": ["ceph-common", "ceph-mon", "ceph-osd"],
    "fio": ["fio"],
    "qperf": ["qperf"],
    "tgt": ["tgt"],
    "libiscsi": ["libiscsi7", "libiscsi-bin"],
    "QEMU": ["qemu-system-x86"],
    "dapltest": ["dapl2-utils"],
    "librpma": ["librpma0"],
    "ibverbs": ["ibverbs"],
    "sideway": ["sideway"],
    "ruapc-rdma": ["ruapc-rdma"],
}
# What stands in front of a program, with its options, and what is none.
WRAPPERS = ("env", "timeout", "stdbuf")
SHELLS = ("sh", "bash", "python3")


def table(tests):
    """`tests`: the list that `run` makes. Numbers are tests; a program of ours is not in the table."""
    counts, programs = collections.defaultdict(collections.Counter), collections.defaultdict(set)
    for name, _, arguments in tests:
        device = name.split("::")[0]
        found = {program for argument in arguments for program in _programs(argument)}
        for package in {_package(program) for program in found}:
            counts[package][device] += 1
            programs[package] |= {program for program in found if _package(program) == package}
    lines = ["| package | programs | tests on `roce0` | on `iwarp0` |", "|---|---|---|---|"]
    for package in sorted(counts):
        names = ", ".join(f"`{_shown(program)}`" for program in sorted(programs[package]))
        numbers = [str(counts[package][device] or "") for device in ("roce0", "iwarp0")]
        lines.append(f"| {package} | {names} | {' | '.join(numbers)} |")
    return "".join(f"{line}\n" for line in lines)


def _programs(argument):
    """The distribution's programs that a case starts: it has command lines, or is started by MPI."""
    yield from getattr(argument, "needs", ())
    commands = [getattr(argument, field, "") for field in ("command", "server", "client", "starter")]
    for command in commands:
        words = shlex.split(command) if isinstance(command, str) else []
        while words and (words[0] in WRAPPERS or words[0].startswith("-") or "=" in words[0]):
            words = words[1:]
        # Of a script, what is known to be the distribution's.
        if words[:1] == ["bash"] and words[1:2] == ["-c"]:
            script = [os.path.basename(word) for word in words[2].split()]
            yield from (word for word in script if _debian(word) != word)
        # Places have the addresses of their server and client.
        if words and words[0] not in SHELLS and words[0][0].isalpha() and ":" not in words[0]:
            yield os.path.basename(words[0])


def _shown(program):
    """Of a crate, its name."""
    return program.rsplit(" ", 1)[-1]


def _package(program):
    """Its name, page and version."""
    if program in OTHERS:
        name, registry = OTHERS[program]
        version = (_WHEELS if registry == "PyPI" else crates.VERSIONS)[name]
        return f"[{name}]({PAGES[registry].format(name=name, version=version)}) {version} ({registry})"
    name = _debian(program)
    return f"[{name}]({DEBIAN.format(name=name)})"


def _with_versions(text):
    """The same with the versions of Debian's packages: those that this machine has, or would install."""

    def add(page):
        policy = subprocess.run(["apt-cache", "policy", page[1]], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
        versions = dict(re.findall(r"(Installed|Candidate): (.*)", policy))
        known = [versions.get(which) for which in ("Installed", "Candidate")]
        version = next((version for version in known if version not in (None, "(none)")), None)
        if not version:
            raise Failed(f"nothing is known of the package {page[1]}: {policy}")
        return f"{page[0]} {version}"

    return OF_DEBIAN.sub(add, text)


def _without_versions(text):
    """The same without them: another machine has others. Each must be there."""
    found = {page[1]: page[2] for page in OF_DEBIAN.finditer(text)}
    if missing := [name for name, version in found.items() if not version]:
        raise Failed(f"docs/programs.md does not say which version of {', '.join(missing)} was tried: tests/programs/run --document")
    return OF_DEBIAN.sub(lambda page: page[0].removesuffix(page[2] or ""), text)


def _debian(program):
    for patterns, package in PACKAGES.items():
        if any(fnmatch.fnmatch(program, pattern) for pattern in patterns.split()):
            return package
    return program


def write(tests):
    PART.write(_with_versions(table(tests)))


def check(tests):
    """Fails unless docs/programs.md says what the tests are, and names what is installed from PyPI with its version and page; and the README names the consumers."""
    for name, version in _WHEELS.items():
        page = f"[{name}]({PAGES['PyPI'].format(name=name, version=version)}) {version}"
        if name not in BESIDE and not PART.holds(page):
            raise Failed(f"docs/programs.md does not name {page}")
    for consumer, packages in CONSUMERS.items():
        if missing := [package for package in packages if f"| [{package}](" not in PART.text()]:
            raise Failed(f"docs/programs.md has no row of {', '.join(missing)}, for {consumer}")
    with open(README) as file:
        text = file.read()
    if missing := [consumer for consumer in CONSUMERS if not re.search(rf"(?<![\w-]){consumer}(?![\w-])", text)]:
        raise Failed(f"the README does not name {', '.join(missing)}")
    if _without_versions(PART.text()) != table(tests):
        raise Failed("docs/programs.md has an old table of programs: tests/programs/run --document")
