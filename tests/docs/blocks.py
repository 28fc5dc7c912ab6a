"""Every block of the documents: bash reads those of the shell, and the words of our own commands exist; data and programs keep their formats."""

import ast
import glob
import json
import os
import re
import subprocess
import textwrap
import tomllib

import texts
from harness.report import Failed

LIMIT_S = 60
# The first words behind the fence that a block of shell commands may have. tests/docs/how-to says what they mean.
KINDS = ("sh", "sh server", "sh by hand", "sh untried")
# The last words in front of a command.
FRONT = re.compile(r"(^|&&|\|\||[;|&(`]|\b(do|then|until|while|if|sudo|exec|netns exec \S+|[A-Z_]+=\S*))$")
WORD = r"""(?:'[^']*'|"[^"]*"|[^\s;&|()'"`#]+)"""
COMMAND = re.compile(rf"(?<![\w.:/=-])(?:[\w.$/-]+/)?adverb(?P<words>(?:[ \t]+{WORD})+)")
VARIABLE = re.compile(r"\b(ADVERB_[A-Z_]+)=")
OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")


def fences(text):
    """All blocks: the number of the first line, the words behind the fence, and the text."""
    for found in re.finditer(r"^( *)(`{3,})(.*?) *\n(.*?)^\1\2 *$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start()) + 1, found[3], textwrap.dedent(found[4])


def joined(block):
    """With one line for each command."""
    return re.sub(r"\\\n\s*", "", block)


class Commands:
    """The words that our own commands know."""

    def __init__(self, root, adverb):
        self._root, self._adverb, self._help = root, adverb, {}
        self._settings = set(re.findall(r"`(ADVERB_[A-Z_]+)", self._read("docs/settings.md"))) | {"ADVERB_TEST_WRITE"}
        self._names = [words[0] for words in texts.commands(adverb) if words]
        self._stages = set()
        for words in ([], ["--nightly"]):
            listed = self._run(os.path.join(root, "test"), *words, "--list")
            self._stages |= set(re.findall(r"^([a-z-]+) ", listed, re.MULTILINE))
        self._tasks = set(re.findall(r"cargo xtask ([a-z]+)", self._read("crates/xtask/src/main.rs")))

    def _read(self, file):
        with open(os.path.join(self._root, file)) as opened:
            return opened.read()

    @staticmethod
    def _run(*command):
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode != 0:
            raise Failed(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}[status {result.returncode}]")
        return result.stdout

    def _help_of(self, *words):
        if words not in self._help:
            self._help[words] = self._run(self._adverb, *words, "--help")
        return self._help[words]

    def _of_adverb(self, words):
        """What is wrong with the words behind `adverb`."""
        mine = words[: words.index("--")] if "--" in words else words
        if not mine[0].startswith("-") and mine[0] not in self._names:
            return f"adverb has no command {mine[0]!r}"
        subcommand = [] if mine[0].startswith("-") else mine[:1]
        # Some commands have commands of their own.
        _, _, further = self._help_of(*subcommand).partition("Commands:") if subcommand else ("", "", "")
        if mine[1:] and re.search(rf"^  {re.escape(mine[1])}\b", further, re.MULTILINE):
            subcommand = mine[:2]
        known = set(OPTION.findall(self._help_of(*subcommand)))
        wrong = {word.partition("=")[0] for word in mine if OPTION.match(word)} - known
        return f"adverb {' '.join(subcommand)} has no option {sorted(wrong)}" if wrong else None

    def _of_cargo(self, words):
        """What is wrong with the words behind `cargo`, when they speak of this repository."""
        if words[0] == "xtask":
            return None if words[1:] and words[1] in self._tasks else f"there is no task {' '.join(words)}"
        given = dict(zip(words, words[1:]))
        package = given.get("-p")
        if words[0] == "install" and "--git" in given:
            if f'repository = "{given["--git"]}"' not in self._read("Cargo.toml"):
                return f"the repository is not at {given['--git']}"
            package = given.get(given["--git"])
        if package is None:
            return None
        folder = os.path.join(self._root, "crates", package.removeprefix("adverb-") if package != "adverb" else package)
        if not os.path.isfile(os.path.join(folder, "Cargo.toml")):
            return f"there is no package {package}"
        feature = given.get("--features")
        if feature and not re.search(rf"^{feature} = \[", self._read(os.path.join(folder, "Cargo.toml")), re.MULTILINE):
            return f"{package} has no feature {feature}"
        # Users get the versions that were tested.
        if words[0] == "install" and "--locked" not in words:
            return "cargo install without --locked leaves Cargo.lock out"
        for option, place in (("--test", f"{folder}/tests"), ("--example", f"{self._root}/examples")):
            if option in given and not os.path.isfile(os.path.join(place, f"{given[option]}.rs")):
                return f"{package} has no {option} {given[option]}"
        return self._of_tests(folder, words) if words[0] == "test" else None

    @staticmethod
    def _of_tests(folder, words):
        """The names of tests are those of functions."""
        with_values = ("-p", "--test")
        names = [word for before, word in zip(words, words[1:]) if not word.startswith("-") and before not in with_values]
        sources = [open(path).read() for path in glob.glob(os.path.join(folder, "**/*.rs"), recursive=True)]
        # Tests of every transport are listed in one place, and named by the crates.
        sources += [open(path).read() for path in glob.glob(os.path.join(folder, "../core/src/conformance/*.rs"))]
        missing = [name for name in names if not any(re.search(rf"\b{name}\b", source) for source in sources)]
        return f"no test is called {missing}" if missing else None

    def wrong(self, block):
        """What our commands would not understand in a block of shell commands."""
        # To a container engine, adverb is an image.
        text = re.sub(r"^(podman|docker) .*", "", joined(block), flags=re.MULTILINE)
        for found in COMMAND.finditer(text):
            words, front = found["words"].split(), text[: found.start()].rpartition("\n")[2].strip()
            # Elsewhere, adverb is a package or a folder, unless a command's name follows.
            if FRONT.search(front) or words[0] in self._names:
                yield self._of_adverb(words)
        for line in text.splitlines():
            for command in re.split(r"&&|\|\||[;|]", re.sub(r"(^|\s)#.*", "", line)):
                words = [word for word in command.split() if not re.match(r"[A-Z_]+=", word)]
                if words[:1] == ["cargo"] and len(words) > 1:
                    yield self._of_cargo(words[1:])
                elif words[:1] == ["./test"]:
                    wrong = [word for word in words[1:] if word not in self._stages and word not in ("--list", "--nightly", "--packages")]
                    yield f"./test knows no {wrong}" if wrong else None
                elif words and re.match(r"(tests|packaging|benches|fuzz)/", words[0]) and not os.path.exists(os.path.join(self._root, words[0])):
                    yield f"there is no {words[0]}"
        for name in sorted(set(VARIABLE.findall(text)) - self._settings):
            yield f"there is no setting {name}"


def bash(block):
    """What bash says of a script that it only reads."""
    result = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=LIMIT_S)
    return result.stderr.strip() or (f"status {result.returncode}" if result.returncode else None)


def shell(root, files, is_run, adverb):
    """All blocks of shell commands. `is_run` says whether blocks of a file that are marked `sh` are run."""
    commands, found, count = Commands(root, adverb), [], 0
    for file in files:
        with open(os.path.join(root, file)) as opened:
            text = opened.read()
        for line, kind, block in fences(text):
            if kind.split(" ")[0] in ("bash", "shell", "console"):
                found.append(f"{file}:{line}: a block of shell commands is marked sh")
            if not kind.startswith("sh"):
                continue
            count += 1
            if kind not in KINDS:
                found.append(f"{file}:{line}: a block {kind!r}; there are {KINDS}")
            if kind in KINDS[:2] and not is_run(file, kind):
                found.append(f"{file}:{line}: no test runs this block: mark it `sh by hand`")
            found += [f"{file}:{line}: {problem}" for problem in (bash(block), *commands.wrong(block)) if problem]
    if found:
        raise Failed("\n".join(found))
    return f"{count} blocks"


def mistakes(root, adverb):
    """What must be seen, and what must not."""
    commands = Commands(root, adverb)
    for block, wanted in (
        ("adverb run --devcie roce0 -- prog --any\n", "no option ['--devcie']"),
        ("sudo target/release/adverb rnu -- prog\n", "no command 'rnu'"),
        ("ADVERB_LOGS=info prog\n", "no setting ADVERB_LOGS"),
        ("cargo test -p adverb-crore --lib\n", "no package adverb-crore"),
        ("cargo test -p adverb-core --lib wrong_local_kesy\n", "no test is called"),
        ("cargo run --release -p adverb --example helo\n", "no --example helo"),
        ("cargo xtask dits\n", "no task"),
        ("cargo install --git https://github.com/adverb-rdma/advreb adverb-cli\n", "not at https"),
        ("cargo install --git https://github.com/adverb-rdma/adverb adverb-cil\n", "no package adverb-cil"),
        ("cargo install --git https://github.com/adverb-rdma/adverb adverb-cli --features embeded\n", "no feature embeded"),
        ("cargo install --git https://github.com/adverb-rdma/adverb adverb-cli --features embedded\n", "without --locked"),
        ("cargo install --locked --git https://github.com/adverb-rdma/adverb adverb-cli --features embedded\n", None),
        ("./test docs progams\n", "knows no ['progams']"),
        ("tests/programms/run rping\n", "no tests/programms/run"),
        ("adverb run --device iwarp0 -- \\\n    prog --foo && adverb devices -v\ncargo add adverb --path ../adverb\n", None),
        ("exec adverb bnech\n", "no command 'bnech'"),
        ("cp /usr/bin/adverb /to/bin/ && tar -x --one-top-level=/opt/adverb --strip-components=1\n", None),
        ('eval "$(adverb env)"; cd adverb && cargo run -p adverb --example hello -- --words\n', None),
    ):
        found = [problem for problem in commands.wrong(block) if problem]
        if (wanted is None) != (not found) or wanted and wanted not in found[0]:
            raise Failed(f"{block!r}: {found}, not {wanted!r}")
    if not bash("for name in a b; do echo\n") or bash("echo a\n"):
        raise Failed("bash -n does not tell a loop without an end")


READERS = {"json": json.loads, "toml": tomllib.loads, "python": ast.parse}


def data(root, files):
    """Blocks of JSON, TOML and Python are that. A part of a list is read as a list."""
    found, count = [], 0
    for file in files:
        with open(os.path.join(root, file)) as opened:
            text = opened.read()
        for line, kind, block in fences(text):
            if kind in READERS and "{{#include" not in block:
                count += 1
                try:
                    READERS[kind](f"[{block}]" if kind == "python" and block.rstrip().endswith("),") else block)
                except (ValueError, SyntaxError) as error:
                    found.append(f"{file}:{line}: {error}")
    if found or not count:
        raise Failed("\n".join(found) or "there is no block")
    return f"{count} blocks"


def patched(root, block):
    """The file that a diff changes, and its text afterwards. All lines without `+` follow each other there, at one place."""
    name, *lines = block.splitlines()
    if not name.startswith("+++ ") or any(line[:1] not in " +" for line in lines):
        raise Failed(f"the diff names no file, or has a line without its sign: {name!r}")
    path = os.path.join(root, name.removeprefix("+++ "))
    with open(path) as opened:
        text = opened.read()
    there = "".join(f"{line[1:]}\n" for line in lines if line[:1] == " ")
    if not there or text.count(there) != 1:
        raise Failed(f"{text.count(there)} places of {name.removeprefix('+++ ')} have the lines\n{there}")
    return path, text.replace(there, "".join(f"{line[1:]}\n" for line in lines))


def diffs(root, file):
    """Each diff of a page can be applied to the sources as they are."""
    with open(os.path.join(root, file)) as opened:
        found = [(line, block) for line, kind, block in fences(opened.read()) if kind == "diff"]
    for line, block in found:
        try:
            patched(root, block)
        except (Failed, OSError) as failure:
            raise Failed(f"{file}:{line}: {failure}") from None
    if not found:
        raise Failed(f"{file} has no diff")
    return f"{len(found)} diffs"
