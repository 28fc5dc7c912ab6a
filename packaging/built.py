"""What the tests of packages need: the packages, and tools of registries, which are fetched before the network goes."""

import glob
import json
import os
import shutil
import subprocess
import sys

from harness.report import Failed

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT_S = 1500
# Of PyPI: what users of the wheel have beside it, and what looks at packages.
FOR_USERS = ["pytest==9.2.0"]
TOOLS = ["twine==7.0.0", "check-jsonschema==0.39.0"]
# The distribution's: one of a user's own would not be there in a bare root.
PYTHON = "/usr/bin/python3"
# Of no registry: the tests and tools of this repository.
OURS_ALONE = ["--exclude", "xtask", "--exclude", "adverb-abi-tests"]


def run(*command, **options):
    """What a command that must succeed prints."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, **options)
    if result.returncode != 0:
        raise Failed(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}[status {result.returncode}]")
    return result.stdout


def target():
    """Cargo's folder for what it builds."""
    return json.loads(run("cargo", "metadata", "--no-deps", "--format-version=1", cwd=ROOT))["target_directory"]


def place(name):
    """A folder of the tests' own, which stays from run to run."""
    return os.path.join(target(), "packaging", name)


def tool(name):
    """A tool that fetch() has installed."""
    return os.path.join(place("tools"), "bin", name)


def fetch(pack=True):
    """Brings everything that comes from registries; with `pack`, packs the crates, too."""
    done = os.path.join(place("tools"), "done")
    wanted = " ".join(FOR_USERS + TOOLS)
    if not os.path.exists(done) or open(done).read() != wanted:
        print(f"Fetching {wanted} from PyPI", flush=True)
        shutil.rmtree(place("tools"), ignore_errors=True)
        shutil.rmtree(place("wheels"), ignore_errors=True)
        run(PYTHON, "-m", "venv", place("tools"))
        run(tool("pip"), "install", "--quiet", *TOOLS)
        run(tool("pip"), "download", "--quiet", "--dest", place("wheels"), *FOR_USERS)
        with open(done, "w") as file:
            file.write(wanted)
    # What the crates need, for a registry without a network.
    shutil.rmtree(place("registry"), ignore_errors=True)
    run("cargo", "vendor", "--quiet", "--locked", place("registry"), cwd=ROOT)
    if not pack:
        return
    # In the order in which crates.io takes them, all that it asks for. Whether each has all that it is built from is found out in the night, when they are installed.
    packing = ["publish", "--dry-run", "--no-verify", "--allow-dirty", "--quiet", "--workspace", *OURS_ALONE]
    shutil.rmtree(os.path.join(target(), "package"), ignore_errors=True)
    try:
        run("cargo", *packing, cwd=ROOT)
    except Failed as failure:
        sys.exit(str(failure))


def dist(fresh=True):
    """The packages of this machine; those of the last time if they are not to be made anew."""
    made = os.path.join(target(), "dist", "adverb[-_]*.*")
    files = run("cargo", "xtask", "dist", cwd=ROOT).split() if fresh else glob.glob(made)
    # A dry run of cargo publish leaves the crates where it has tried them.
    crates = sorted(glob.glob(os.path.join(target(), "package", "tmp-crate", "adverb*.crate")))
    return by_kind(files, crates, os.path.join(ROOT, "packaging/install.sh"))


def released(folder):
    """The packages of this machine in a folder of `cargo xtask release`. Its crates and its installer are used, too."""
    machine = os.uname().machine
    names = {machine, {"x86_64": "amd64", "aarch64": "arm64"}[machine]}
    files = [file for file in glob.glob(os.path.join(folder, "adverb[-_]*")) if any(name in os.path.basename(file) for name in names)]
    return by_kind(files, sorted(glob.glob(os.path.join(folder, "adverb*.crate"))), os.path.join(folder, "install.sh"))


def by_kind(files, crates, installer):
    """Packages, each by the end of its name; the crates; and the installer."""
    by_end = {end: [file for file in files if file.endswith(end)] for end in (".tar.gz", ".deb", ".whl")}
    if any(len(found) != 1 for found in by_end.values()) or not os.path.isfile(installer):
        raise Failed(f"these are the packages: {files}, {installer}")
    return {end: found[0] for end, found in by_end.items()} | {".crate": crates, ".sh": installer}
