"""What everybody does with adverb, however it was installed: `adverb` is on the path."""

from built import run
from harness.report import Failed

# A pair of perftest: the commands in front of the server and of the client. The client comes again until the server listens.
PERFTEST = """
{server} ib_write_lat -n 200 >server.txt & server=$!
tries=0
until {client} ib_write_lat -n 200 127.0.0.1 >client.txt 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 100 ] || {{ cat client.txt server.txt; exit 1; }}
  sleep 0.1
done
wait $server
grep -q '^ 2  *200 ' client.txt || {{ cat client.txt; exit 1; }}
rm server.txt client.txt
"""

TEST_IN_RUST = """
use std::ffi::{CStr, c_char, c_int, c_void};
#[link(name = "ibverbs")]
unsafe extern "C" {
    fn ibv_get_device_list(number: *mut c_int) -> *mut *mut c_void;
    fn ibv_get_device_name(device: *mut c_void) -> *const c_char;
}
#[test]
fn there_is_a_device() {
    let mut number = 0;
    let name = unsafe {
        let list = ibv_get_device_list(&mut number);
        assert_eq!(number, 1);
        CStr::from_ptr(ibv_get_device_name(*list))
    };
    assert_eq!(name.to_str(), Ok("roce0"));
}
"""
MANIFEST = '[package]\nname = "app"\nedition = "2024"\n[lib]\npath = "lib.rs"\n'
RUNNER = "[target.'cfg(target_os = \"linux\")']\nrunner = \"adverb run --\"\n"

TEST_IN_PYTHON = """
import ctypes, pytest

def names():
    verbs, count = ctypes.CDLL("libibverbs.so.1"), ctypes.c_int()
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    found = verbs.ibv_get_device_list(ctypes.byref(count))
    return [verbs.ibv_get_device_name(found[i]).decode() for i in range(count.value)]

@pytest.mark.adverb
def test_own_process():
    assert names() == ["roce0"]

@pytest.mark.adverb
def test_either_name_of_a_library_is_the_same_engine():
    one, other = (ctypes.CDLL(name).ibv_open_device for name in ("libibverbs.so", "libibverbs.so.1"))
    assert ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value

@pytest.mark.adverb("iwarp0")
def test_needs_another_device():
    assert "iwarp0" in names()

def test_programs_of_its_own(adverb):
    assert adverb.devices() == ["roce0"]
    assert adverb.devices("iwarp0") == ["iwarp0"]
    # Waits for a client, and is ended with the test.
    server = adverb.start("ib_write_lat")
    assert server.poll() is None
"""


def demo_and_pair(bare, **variables):
    """The demo, and two programs of the distribution."""
    demo = bare.run("adverb demo", **variables)
    if "demo PASSED" not in demo:
        raise Failed(demo)
    bare.run(PERFTEST.format(server="adverb run --", client="adverb run --"), **variables)


def toolchain():
    """Folders for a root in which cargo works."""
    return {run("rustc", "--print", "sysroot").strip(): "/rust"}


def cargo_test(bare, everywhere=False, **variables):
    """`cargo test` with the runner: the test program has devices, and has none without, unless programs have them `everywhere`. The toolchain is in /rust, and its programs are on the path."""
    variables = {"CARGO_HOME": "/home/user/app/home", **variables}
    bare.write("/home/user/app/Cargo.toml", MANIFEST)
    bare.write("/home/user/app/lib.rs", TEST_IN_RUST)
    command = "cd app; cargo test --offline --lib"
    if everywhere:
        expect(bare, command, "1 passed", **variables)
    else:
        bare.refused(command, "1 failed", **variables)
    bare.write("/home/user/app/.cargo/config.toml", RUNNER)
    expect(bare, command, "1 passed", **variables)
    bare.run("rm -r app", **variables)


def expect(bare, command, words, **variables):
    said = bare.run(command, **variables)
    if words not in said:
        raise Failed(f"$ {command}\nwas to print {words!r}:\n{said}")


def pytest(bare, start, everywhere=False, **variables):
    """Tests with the plug-in: without devices of their own (unless programs have them `everywhere`), with them by the option, with them by the command, and with others.

    `start` is pytest with the words that it needs."""
    bare.write("/home/user/tests/test_devices.py", TEST_IN_PYTHON)
    options = "-q -rs -p no:cacheprovider"
    for command, words in (
        (f"{start} {options}", "3 passed, 1 skipped" if everywhere else "1 passed, 3 skipped"),
        (f"{start} {options} --adverb", "3 passed, 1 skipped"),
        (f"adverb run -- {start} {options}", "3 passed, 1 skipped"),
        (f"{start} {options} -k another --adverb-devices roce0,iwarp0", "1 passed"),
        (f"adverb run -- {start} {options} -k another --adverb-devices roce0,iwarp0", "1 passed"),
    ):
        expect(bare, f"cd tests && {command}", words, **variables)
    bare.run("rm -r tests")


def pytest_of_the_distribution(bare, prefix, everywhere=False, **variables):
    """The plug-in below a prefix, which pip has not installed, with a pytest that has not come by pip. It finds the command beside it."""
    pytest(bare, "pytest -p pytest_adverb", everywhere, PYTHONPATH=f"{prefix}/share/adverb", **variables)
