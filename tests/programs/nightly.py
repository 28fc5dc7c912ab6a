"""What is left to the night: it takes more to install, or is a matter of time. Ceph is in ceph.py, hurried tests of crates are in crates.py."""

import functools
import glob
import os
import re
import tarfile
from dataclasses import dataclass

import bystanders
import consumers
from harness.process import Process, expect_success
from harness.report import Failed

LIMIT_S = 120
# They go with the environment, which pytest is in.
SOURCES = os.path.join(consumers.ENVIRONMENT, "sources")
PYTEST = "pytest==9.2.0"
BINDINGS = next(wheel for wheel in consumers.WHEELS if wheel.startswith("ibverbs=="))


@dataclass
class Suite:
    """The own tests of a package of PyPI: so many pass, and the reasons of those that it skips are these."""

    name: str
    passed: int
    skipped: tuple
    needs: tuple


# It has a test of two devices, and needs PyTorch for a GPU's memory.
SUITE = Suite("python_ibverbs_suite", 88, ("No module named 'torch'", "GPUNetIO bridge requires mlx5"), ("ibverbs",))
DEVICES = "roce0@interface=cable roce1@interface=cable"


def prepare():
    """Gets pytest, and the sources of the bindings, which have their tests."""
    if os.path.exists(_folder()):
        return
    pip = [f"{consumers.ENVIRONMENT}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    consumers.succeed([*pip, "install", PYTEST])
    consumers.succeed([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", SOURCES, BINDINGS])
    [archive] = glob.glob(f"{SOURCES}/ibverbs-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(SOURCES, filter="data")


def _folder():
    return os.path.join(SOURCES, BINDINGS.replace("==", "-"))


def passes(suite, adverb):
    """The suite passes, as much of it as must, and both devices have been used."""
    if not os.path.exists(_folder()):
        raise Failed("the suite is missing: tests/programs/run --prepare --nightly gets it")
    tests = [consumers.python(), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", os.path.join(_folder(), "tests")]
    with Process([adverb, "run", "--devices", DEVICES, "--", *tests], {"ADVERB_LOG": "info"}) as process:
        expect_success([process], LIMIT_S)
        words = process.output()
        skipped = re.findall(r"^SKIPPED (.*)", words, re.MULTILINE)
        as_expected = len(skipped) == len(suite.skipped) and all(any(reason in line for line in skipped) for reason in suite.skipped)
        if f"{suite.passed} passed, {len(suite.skipped)} skipped" not in words or not as_expected:
            raise Failed(f"expected are {suite.passed} passes, and skipped {suite.skipped}:\n{process.describe()}")
        used = sorted(set(re.findall(r"counters (\S+): .*\brx_bytes=", words)))
        if used != ["roce0", "roce1"]:
            raise Failed(f"only {used} have received something:\n{process.describe()}")
    return f"{suite.passed} passed; skipped: {'; '.join(suite.skipped)}"


def in_go(folder):
    """The program raw.go; of tests that run side by side, the first compiles it."""
    with bystanders.COMPILING:
        return _compile_in_go(folder)


@functools.cache
def _compile_in_go(folder):
    program, source = os.path.join(folder, "raw-go"), os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw.go")
    with Process(["go", "build", "-o", program, source], {"GO111MODULE": "off", "GOCACHE": os.path.join(folder, "go-cache")}) as compiler:
        expect_success([compiler], LIMIT_S)
    return program


def go_is_a_bystander(folder, adverb):
    """A program in Go finds below /sys what it finds without adverb, whatever places devices have."""
    script = f"{in_go(folder)} /sys/class/net /sys/class/infiniband /sys/bus/pci/devices /sys/class/pci_bus /sys/devices/system/cpu/cpu0/topology /sys/class/none /dev/null; exit 5"
    return bystanders.same(folder, adverb, ["sh", "-c", script], 5)
