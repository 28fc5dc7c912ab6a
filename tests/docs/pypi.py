"""Programs from PyPI, each in a folder of its own below the folder target."""

import os
import re
import subprocess
import sys

from harness.report import Failed

LIMIT_S = 300


def run(*command, text=None):
    """What a command prints that must succeed."""
    result = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    # mdbook leaves out a preprocessor that cannot be started, with a warning.
    if result.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", result.stdout):
        raise Failed(f"$ {' '.join(command)}\n{result.stdout}[status {result.returncode}]")
    return result.stdout


def tool(target, package, name):
    """The path of a program of a package, which is installed first."""
    folder = os.path.join(target, package)
    done = os.path.join(folder, "done")
    if not os.path.exists(done):
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(os.path.join(folder, "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", package)
        os.mkdir(done)
    return os.path.join(folder, "bin", name)
