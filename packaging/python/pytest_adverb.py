"""RDMA devices for tests that pytest runs.

`pytest --adverb` starts pytest anew under `adverb run`, so that pyverbs, and every library and program that a test uses, find devices. The fixture `adverb` starts other programs with devices, also
in a pytest that has none itself. A test with the marker `adverb` is skipped where its own process has no devices, or not the ones that the marker names.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

# In the environment of a pytest that was started anew.
STARTED = "PYTEST_ADVERB_STARTED"
DEVICES = "/sys/class/infiniband"


def find():
    """The command: of this Python's packages, else of PATH. None if there is none."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
    return shutil.which("adverb", path=os.pathsep.join(folders)) or shutil.which("adverb")


def is_inside():
    """Whether this process runs on adverb's libraries."""
    loaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return any(os.path.basename(name) == "libadverb_preload.so" for name in loaded)


def pytest_addoption(parser):
    group = parser.getgroup("adverb", "RDMA devices")
    group.addoption("--adverb", action="store_true", help="run all tests with RDMA devices, under `adverb run`")
    group.addoption("--adverb-devices", metavar="LIST", help="the same, with these devices: roce0,iwarp0, for example")
    parser.addini("adverb_devices", "the devices of a run with --adverb, if --adverb-devices does not say", default="")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "adverb(*devices): needs RDMA devices in pytest's own process; skipped without `pytest --adverb`"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    options = config.option
    if not (options.adverb or options.adverb_devices) or is_inside():
        return
    if os.environ.get(STARTED) == str(os.getpid()):
        raise pytest.UsageError(f"{sys.executable} does not load adverb's libraries: is it linked statically?")
    command = find()
    if command is None:
        raise pytest.UsageError("--adverb: the command `adverb` is not installed")
    if [*config.invocation_params.args] != sys.argv[1:]:
        raise pytest.UsageError("--adverb is for pytest's own command line; start this program with `adverb run --`")
    pytest_itself = ["-m", "pytest"] if os.path.basename(sys.argv[0]) == "__main__.py" else [sys.argv[0]]
    devices = options.adverb_devices or config.getini("adverb_devices")
    chosen = ["--devices", devices] if devices else []
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    os.environ[STARTED] = str(os.getpid())
    os.execv(command, [command, "run", *chosen, "--", sys.executable, *pytest_itself, *sys.argv[1:]])


def pytest_runtest_setup(item):
    for marker in item.iter_markers("adverb"):
        if not is_inside():
            pytest.skip("needs RDMA devices: pytest --adverb")
        there = os.listdir(DEVICES) if os.path.isdir(DEVICES) else []
        missing = [name for name in marker.args if name not in there]
        if missing:
            pytest.skip(f"needs the device {', '.join(missing)}: pytest --adverb-devices")


class Adverb:
    """Starts programs with RDMA devices."""

    def __init__(self, command):
        #: The path of the command.
        self.command = command
        self._started = []

    def arguments(self, *program, devices=None):
        """The command line that starts `program` with devices: with `devices`, a list as of `adverb run --devices`, or the default."""
        chosen = ["--devices", devices] if devices else []
        return [self.command, "run", *chosen, "--", *map(os.fspath, program)]

    def run(self, *program, devices=None, **options):
        """As subprocess.run(); by default it captures text, fails with the program, and waits a minute at most."""
        options = {"text": True, "capture_output": True, "check": True, "timeout": 60, **options}
        return subprocess.run(self.arguments(*program, devices=devices), **options)

    def start(self, *program, devices=None, **options):
        """As subprocess.Popen(); what still runs at the end of the test is ended."""
        process = subprocess.Popen(self.arguments(*program, devices=devices), **options)
        self._started.append(process)
        return process

    def devices(self, devices=None):
        """The names of the devices that a program sees."""
        return sorted(self.run("ls", DEVICES, devices=devices).stdout.split())

    def end(self):
        """Ends what start() has started."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def adverb():
    """Starts programs with RDMA devices: adverb.run("ibv_devinfo"), adverb.start("ib_write_lat")."""
    command = find()
    if command is None:
        pytest.fail("the command `adverb` is not installed", pytrace=False)
    starter = Adverb(command)
    yield starter
    starter.end()
