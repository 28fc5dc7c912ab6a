"""RDMA devices for tests that pytest runs.

`pytest --adverb` starts pytest anew under `adverb run`, so that pyverbs, and every library and program that a test uses, find devices. The fixture `adverb` starts other programs with devices, also
in a pytest that has none itself. A test with the marker `adverb` is skipped where its own process has no devices, or not the ones that the marker names.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig

import pytest

# In the environment of a pytest that was started anew.
STARTED = "PYTEST_ADVERB_STARTED"
DEVICES = "/sys/class/infiniband"
# How programs end that a test ends itself: directly, or as `adverb run` says it.
BY_THE_TEST = [status for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) for status in (-number, 128 + number)]


# The command's folder, where this file is in share/adverb of the tarball or of the Debian package. A command of `cargo install` unpacks this file elsewhere.
HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE = [os.path.normpath(os.path.join(HERE, "../../bin"))] if HERE.endswith("/share/adverb") else []


def find():
    """The command: in the package that this file is from, else of this Python's packages, else of PATH. None if there is none."""
    folders = [*BESIDE, sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
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
    if not (options.adverb or options.adverb_devices):
        return
    # A pytest that has devices, by `adverb run` or the variables of an image, is started anew for other ones; but only once.
    if is_inside() and (STARTED in os.environ or not options.adverb_devices):
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


def shown(text):
    """A command line, or what a program has printed."""
    if isinstance(text, list):
        return "$ " + " ".join(map(shlex.quote, text))
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def ended(status):
    """How a program ended, in words."""
    return f"status {status}" if status >= 0 else f"signal {-status}"


class Adverb:
    """Starts programs with RDMA devices."""

    def __init__(self, command):
        #: The path of the command.
        self.command = command
        self._started = []

    def arguments(self, *program, devices=None):
        """The command line that starts `program` with devices: with `devices`, a list as of `adverb run --devices`, or the default."""
        chosen = ["--devices", devices] if devices else []
        if len(program) == 1 and isinstance(program[0], (list, tuple)):
            program = program[0]
        return [self.command, "run", *chosen, "--", *map(os.fspath, program)]

    def run(self, *program, devices=None, **options):
        """As subprocess.run(); by default it captures text, fails the test if the program fails, and waits a minute at most."""
        __tracebackhide__ = True
        options = {"text": True, "capture_output": True, "check": True, "timeout": 60, **options}
        try:
            return subprocess.run(self.arguments(*program, devices=devices), **options)
        except subprocess.CalledProcessError as error:
            how, outcome = ended(error.returncode), error
        except subprocess.TimeoutExpired as error:
            how, outcome = f"not ended after {error.timeout} s", error
        told = map(shown, filter(None, (outcome.stdout, outcome.stderr)))
        pytest.fail("\n".join([f"{shown(outcome.cmd)}: {how}", *told]), pytrace=False)

    def start(self, *program, devices=None, check=True, **options):
        """As subprocess.Popen(). What still runs at the end of the test is ended; by default the test fails if the program has failed by then."""
        process = subprocess.Popen(self.arguments(*program, devices=devices), **options)
        self._started.append((process, check))
        return process

    def devices(self, devices=None):
        """The names of the devices that a program sees."""
        return sorted(self.run("ls", DEVICES, devices=devices).stdout.split())

    def end(self):
        """Ends what start() has started. Says which programs had failed before."""
        failed = [process for process, check in self._started if check and process.poll() not in (None, 0, *BY_THE_TEST)]
        for process, _ in self._started:
            process.terminate()
        for process, _ in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [f"{shown(process.args)}: {ended(process.returncode)}" for process in failed]


@pytest.fixture
def adverb():
    """Starts programs with RDMA devices: adverb.run("ibv_devinfo"), adverb.start("ib_write_lat")."""
    command = find()
    if command is None:
        pytest.fail("the command `adverb` is not installed", pytrace=False)
    starter = Adverb(command)
    yield starter
    failed = starter.end()
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)
