"""The Python wheel, and its plug-in for pytest."""

import os

import use
from bare import Bare
from built import PYTHON, place, run, tool
from harness.report import Failed

INSIDE = "/home/user/venv/bin"
PATH = f"{INSIDE}:/rust/bin:/usr/bin:/bin:/usr/sbin"

# A program that fails fails the test, with what it has said; also one in the background.
TEST_OF_FAILURES = """
def test_in_front(adverb):
    adverb.run(["sh", "-c", "echo told on stderr >&2; exit 3"])

def test_in_the_background(adverb):
    adverb.start("sh", "-c", "exit 5").wait()
"""


def metadata(path):
    """What PyPI looks at before it takes a wheel."""
    said = run(tool("twine"), "check", "--strict", path)
    if "PASSED" not in said:
        raise Failed(said)
    return os.path.basename(path)


def wheel(path):
    """pip installs it without a network, everything works, pip removes it, and nothing stays."""
    with Bare(also={place("wheels"): "/opt/wheels", **use.toolchain()}) as bare:
        archive = bare.add(path, "/opt/ours")
        pip = f"{INSIDE}/pip --disable-pip-version-check --quiet --no-cache-dir"
        bare.run(f"{PYTHON} -m venv venv && {pip} install --no-index --find-links /opt/wheels pytest && chmod -R a+rX venv")
        before = bare.files()
        bare.run(f"{pip} install --no-index {archive}")
        use.demo_and_pair(bare, PATH=PATH)
        use.cargo_test(bare, PATH=PATH)
        variables = {"PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}
        use.pytest(bare, "pytest", **variables)
        use.pytest(bare, "python -m pytest", **variables)
        bare.write("/home/user/tests/test_failures.py", TEST_OF_FAILURES)
        bare.refused(f"cd tests && PATH=/usr/bin:/bin {INSIDE}/pytest --adverb-devices none", "none", **variables)
        words = bare.refused("cd tests && pytest -q -rs -p no:cacheprovider", "1 failed, 1 passed, 1 error", **variables)
        for wanted in ("told on stderr", "status 3", "status 5"):
            if wanted not in words:
                raise Failed(f"{wanted!r} is not among:\n{words}")
        bare.run(f"rm -r tests && {pip} uninstall --yes adverb")
        bare.left(before)


def refused(path):
    """On a system that it is not for, and without a registry, pip takes no wheel and leaves nothing."""
    with Bare() as bare:
        bare.run(f"{PYTHON} -m venv venv")
        before = bare.files()
        name = os.path.basename(path)
        for other in (name.replace("manylinux_2_", "manylinux_2_9"), name.replace("manylinux_2_", "musllinux_1_"), name.replace("x86_64", "s390x").replace("aarch64", "s390x")):
            os.link(bare.path(bare.add(path)), bare.path(f"/tmp/{other}"))
            bare.refused(f"{INSIDE}/pip --no-cache-dir install --no-index /tmp/{other}", "not a supported wheel", PATH=PATH)
            bare.run("rm /tmp/*.whl")
        bare.refused(f"{INSIDE}/pip --no-cache-dir --retries 0 install adverb", "No matching distribution found for adverb", PATH=PATH)
        bare.left(before)


def tests(packages):
    yield "what_pypi_asks_of_a_wheel", lambda: metadata(packages[".whl"])
    yield "pip_installs_and_removes_and_pytest_has_devices", lambda: wheel(packages[".whl"])
    yield "pip_refuses_what_the_wheel_cannot_serve", lambda: refused(packages[".whl"])
