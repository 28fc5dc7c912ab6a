"""The workflows of the hosting (.github), as a linter's own reader has them. The linters come from PyPI, into the folder target."""

import glob
import json
import os
import subprocess
import sys

from .report import Failed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
LINTERS = ("check-jsonschema==0.39.0", "zizmor==1.32.0")
ENVIRONMENT = os.path.join(TARGET, "linters")
LIMIT_S = 60
READER = "import json, sys; from ruamel.yaml import YAML; print(json.dumps([YAML(typ='safe').load(open(file)) for file in sys.argv[1:]]))"


def run(*command, text=None, limit_s=LIMIT_S, cwd=ROOT, **variables):
    """What a command prints that must succeed. Variables that are None are not in its environment."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    result = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, timeout=limit_s, env=environment)
    if result.returncode != 0:
        raise Failed(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}[status {result.returncode}]")
    return result.stdout


def install():
    """Brings the linters."""
    done = os.path.join(ENVIRONMENT, "_".join(LINTERS))
    if not os.path.exists(done):
        run(sys.executable, "-m", "venv", "--clear", ENVIRONMENT)
        run(linter("python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *LINTERS, limit_s=300)
        os.mkdir(done)


def linter(name):
    return os.path.join(ENVIRONMENT, "bin", name)


def files(pattern):
    """Files of the hosting."""
    found = sorted(glob.glob(os.path.join(ROOT, ".github", pattern)))
    if not found:
        raise Failed(f"there is no .github/{pattern}")
    return found


def workflows():
    """The workflows, by their names."""
    paths = files("workflows/*.yml")
    return dict(zip(map(os.path.basename, paths), json.loads(run(linter("python"), "-c", READER, *paths))))
