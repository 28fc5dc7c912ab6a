"""Blocks of the documents marked `sh` are run, line by line, as a reader would."""

import os
import re
import shutil
import subprocess
import tempfile

from harness.process import Process, descendants, expect_success, wait_until, waits
from harness.report import Failed

LIMIT_S = 120
LISTENING = "0A"


def blocks(text, language):
    """The blocks whose first line has this word and no other: pairs of a line's number and the block."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def environment(adverb):
    """Programs of the distribution first, python3 among them."""
    path = os.pathsep.join([os.path.dirname(adverb), "/usr/bin", "/bin", os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def _listens():
    """Whether a TCP socket of this network namespace listens."""
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as file:
            if any(line.split()[3] == LISTENING for line in file):
                return True
    return False


def _serves(server):
    """A condition: a server is ready, by its TCP port or because it sleeps on RoCE's; or it has ended."""
    calm = 0

    def condition():
        nonlocal calm
        # A program that starts sleeps, too, but not for long.
        calm = calm + 1 if waits(descendants(server.pid)[-1]) else 0
        return _listens() or calm > 20 or server.status() is not None

    return condition


def run(block, folder, adverb):
    """Every command ends with status 0, those in the background too. What they print."""
    servers = []
    try:
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = re.sub(r"\s+#.*", "", line).strip()
            if not command or command.startswith("#"):
                continue
            in_background = command.endswith("&")
            # In the background it is the process itself that ends, or is killed.
            command = f"cd {folder} && " + (f"exec env {command.rstrip('& ')}" if in_background else command)
            process = Process(["bash", "-c", command], environment(adverb))
            servers.append(process)
            if in_background:
                wait_until(_serves(process), LIMIT_S, command)
            else:
                expect_success([process], LIMIT_S, [server for server in servers if server is not process])
        expect_success(servers, LIMIT_S)
        return [server.output() for server in servers]
    finally:
        for server in servers:
            server.__exit__()


def check(file, text, sources, adverb):
    """Runs all blocks of a document in one folder; `sources` are folders to copy, each with its name there. The number of the blocks."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="adverb-docs-") as folder:
        for source, name in sources:
            shutil.copytree(source, os.path.join(folder, name), dirs_exist_ok=True)
        for number, block in blocks(text, "sh"):
            try:
                run(block, folder, adverb)
            except Failed as failure:
                raise Failed(f"the block at {file}:{number}:\n{failure}") from None
            count += 1
    return f"{count} blocks" if count else ""


# Programs that the tests on pages start: each has devices, and says so.
STANDS_IN = "#!/bin/sh\nibv_devices | grep -q roce0 || exit 1\necho {}\n"


def pytest(text, plugin, adverb):
    """Runs the tests that a document shows, with the plug-in as the wheel has it. The programs that they start are stand-ins."""
    shown = [block for _, block in blocks(text, "python") if "def test_" in block]
    with tempfile.TemporaryDirectory(prefix="adverb-docs-") as folder:
        for number, block in enumerate(shown):
            with open(os.path.join(folder, f"test_{number}.py"), "w") as file:
                file.write(block)
        for name, says in (("loopback", "ok"), ("server", "listening"), ("client", "done"), ("my_server", "listening"), ("my_client", "done")):
            with open(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY, 0o755), "w") as file:
                file.write(STANDS_IN.format(says))
        variables = environment(adverb)
        variables |= {"PYTHONPATH": plugin, "PATH": f"{variables['PATH']}{os.pathsep}{folder}"}
        command = ["python3", "-m", "pytest", "-p", "pytest_adverb", "-p", "no:cacheprovider", "--adverb"]
        result = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    count = sum(block.count("def test_") for block in shown)
    if result.returncode != 0 or not re.search(rf"\b{count} passed in", result.stdout):
        raise Failed(f"not all of {count} tests pass\n{result.stdout}{result.stderr}[status {result.returncode}]")
    return f"{count} tests"


def exercise(checker, number, script, adverb):
    """What the checker of the tutorial's exercises says of a solution, a script of bash; None if it takes it."""
    with tempfile.TemporaryDirectory(prefix="adverb-docs-") as folder:
        path = os.path.join(folder, "solution")
        with open(path, "w") as file:
            file.write(script)
        command = ["python3", checker, number, "bash", path]
        result = subprocess.run(command, env=environment(adverb), capture_output=True, text=True, timeout=LIMIT_S)
    return result.stderr if result.returncode else None


def misnamed(checker, adverb):
    """What the checker says when a program of its folder is named without its folder."""
    with tempfile.TemporaryDirectory(prefix="adverb-docs-") as folder:
        shutil.copy("/bin/true", os.path.join(folder, "capitals"))
        command = ["python3", checker, "1", "capitals"]
        result = subprocess.run(command, cwd=folder, env=environment(adverb), capture_output=True, text=True, timeout=LIMIT_S)
    return result.stderr


def part(text, language, path):
    """The one block of a language is a part of the file, whole lines as they are there."""
    with open(path) as opened:
        whole = opened.read()
    found = [block for _, block in blocks(text, language)]
    if len(found) != 1 or f"\n{found[0]}" not in whole:
        raise Failed(f"the block of {language} is not in {path}")
