"""`cargo install` from packed crates, and the runner of cargo's tests."""

import hashlib
import os
import re
import shutil
import tarfile

import use
from bare import Bare
from built import ROOT, place, run
from harness.report import Failed

# A directory stands for crates.io.
CONFIGURATION = """\
[source.crates-io]
replace-with = "packed"
[source.packed]
directory = "/opt/registry"
[net]
{net}
"""
PATH = "/home/user/cargo/bin:/rust/bin:/usr/bin:/bin:/usr/sbin"
# What takes the time of a release build is not tested here.
VARIABLES = {"PATH": PATH, "CARGO_HOME": "/home/user/cargo", "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_TERM_COLOR": "never"}


def registry(packed):
    """A folder with the crates that ours need, and with ours as they are packed."""
    for crate in packed:
        with open(crate, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        with tarfile.open(crate) as archive:
            archive.extractall(place("registry"))
        folder = os.path.join(place("registry"), os.path.basename(crate)[: -len(".crate")])
        with open(os.path.join(folder, ".cargo-checksum.json"), "w") as file:
            file.write(f'{{"files":{{}},"package":"{digest}"}}')
    return place("registry")


def bare_with_cargo(packed, net="offline = true"):
    bare = Bare(also={**use.toolchain(), registry(packed): "/opt/registry"})
    bare.write("/home/user/cargo/config.toml", CONFIGURATION.format(net=net))
    return bare


def remove_what_is_cargos(bare):
    """Cargo's own: its list of what it has installed, what it has fetched, and its locks."""
    names = ".crates.toml .crates2.json .package-cache* .global-cache* registry git"
    bare.run(f"cd cargo && rm -rf {names} && {{ rmdir bin || [ ! -e bin ]; }}", **VARIABLES)


def install(packed):
    """An empty CARGO_HOME, an empty folder: the command brings its libraries, and all works. Both go without a trace."""
    with bare_with_cargo(packed) as bare:
        before = bare.files()
        # With the versions of the Cargo.lock in the crate, as README.md tells users.
        bare.run("cargo install --quiet --locked --debug adverb-cli", **VARIABLES)
        use.demo_and_pair(bare, **VARIABLES)
        use.cargo_test(bare, **VARIABLES)
        use.pytest(bare, "pytest -p pytest_adverb", PYTHONPATH="/home/user/.cache/adverb", **VARIABLES)
        unpacked = [name for name in bare.files() if name.startswith("/home/user/.cache/adverb/")]
        # The folder, six names of libraries, two texts, and the link to the plug-in.
        if len(unpacked) != 10:
            raise Failed(f"the command has unpacked {unpacked}")
        bare.run("cargo uninstall --quiet adverb-cli && rm -r ~/.cache/adverb", **VARIABLES)
        shutil.rmtree(bare.path("/home/user/.cache"), ignore_errors=True)
        remove_what_is_cargos(bare)
        bare.left(before)


def repository(bare, name):
    """The source tree as it is here, as one commit of a repository in the place."""
    for file in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0"):
        source = os.path.join(ROOT, file)
        if file and os.path.lexists(source):
            os.makedirs(os.path.dirname(bare.path(f"{name}/{file}")), exist_ok=True)
            shutil.copy(source, bare.path(f"{name}/{file}"), follow_symlinks=False)
    who = "-c user.name=user -c user.email=user@localhost"
    bare.run(f"cd {name} && git init --quiet && git add --force . && git {who} commit --quiet --message=all")


def from_the_hosting(packed):
    """The line of README.md, word by word; but git takes the address for that of a repository in the place, and the build is not optimised."""
    with open(os.path.join(ROOT, "README.md")) as file:
        (line,) = re.findall("^cargo install .*--git.*$", file.read(), re.MULTILINE)
    (address,) = re.findall(r"--git (\S+)", line)
    with bare_with_cargo(packed, net="git-fetch-with-cli = true") as bare:
        repository(bare, "/opt/source")
        bare.write("/home/user/.gitconfig", f'[url "file:///opt/source"]\n\tinsteadOf = {address}\n')
        bare.run(f"{line} --quiet --debug", **VARIABLES)
        use.expect(bare, "adverb demo", "demo PASSED", **VARIABLES)


def refused(packed):
    """What cannot be served ends before anything is installed, with the reason."""
    if len(packed) != 17:
        raise Failed(f"these are packed: {packed}")
    with bare_with_cargo(packed) as bare:
        # The build script alone, as cargo runs it for other targets.
        script = "/opt/registry/adverb-cli-*/build.rs"
        bare.run(f"rustc --edition 2024 -o /opt/script {script}", **VARIABLES)
        before = bare.files()
        for environment, why in (
            ("OS=linux ENV=musl ARCH=x86_64", "not of musl"),
            ("OS=linux ENV=gnu ARCH=riscv64", "not for riscv64"),
            ("OS=macos ENV= ARCH=aarch64", "not for macos"),
        ):
            target = " ".join(f"CARGO_CFG_TARGET_{word}" for word in environment.split(" "))
            bare.refused(f"{target} /opt/script", why, **VARIABLES)
        # No registry: cargo says what it lacks.
        bare.run("rm cargo/config.toml")
        bare.refused("cargo install adverb-cli", "failed to", **{**VARIABLES, "CARGO_NET_RETRY": "0"})
        remove_what_is_cargos(bare)
        bare.left(before)


def tests(packages):
    yield "cargo_refuses_what_it_cannot_serve", lambda: refused(packages[".crate"])


def tests_that_build(packages):
    """Each builds everything: in the night, with all that is published."""
    packed = packages[".crate"]
    yield "cargo_installs_the_command_with_its_libraries_and_cargo_tests_have_devices", lambda: install(packed)
    yield "cargo_installs_the_command_by_the_line_of_the_readme", lambda: from_the_hosting(packed)
