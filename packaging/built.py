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


def fetch():
    """Brings everything that comes from registries."""
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
    # In the order in which crates.io takes them, all that it asks for. What each is built from is found out when they are installed.
    packing = ["publish", "--dry-run", "--no-verify", "--allow-dirty", "--quiet", "--workspace", *OURS_ALONE]
    shutil.rmtree(os.path.join(target(), "package"), ignore_errors=True)
    try:
        run("cargo", *packing, cwd=ROOT)
    except Failed as failure:
        sys.exit(str(failure))


def dist(fresh=True):
    """The packages of this machine, each by the end of its name; those of the last time if they are not to be made anew."""
    made = os.path.join(target(), "dist", "adverb[-_]*.*")
    files = run("cargo", "xtask", "dist", cwd=ROOT).split() if fresh else glob.glob(made)
    by_end = {end: [file for file in files if file.endswith(end)] for end in (".tar.gz", ".deb", ".whl")}
    if any(len(found) != 1 for found in by_end.values()):
        raise Failed(f"cargo xtask dist made {files}")
    return {end: found[0] for end, found in by_end.items()}


def packed():
    """The crates as crates.io would have them. A dry run of cargo publish leaves them where it has tried them."""
    return sorted(glob.glob(os.path.join(target(), "package", "tmp-crate", "adverb*.crate")))
