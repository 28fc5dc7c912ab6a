"""A root folder like a user's machine: the distribution's programs, a home, and neither the source tree nor anything that was built in it."""

import os
import shutil
import subprocess
import tempfile

from harness.report import Failed

LIMIT_S = 900
HOME = "/home/user"
# Of this machine, as it is. What programs write goes to folders of the place's own.
SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/etc", "/dev", "/sys")
# As the shell of a fresh login has it.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": HOME, "LANG": "C.UTF-8", "USER": "user"}
# Names of files and folders that programs may leave without being adverb's: caches of Python and of the shell.
OTHERS = ("__pycache__", ".pytest_cache")


class Bare:
    """The root folder; files for it go in by add(), and at the end of a `with` it goes. `also` shows folders of this machine under other names.

    `shown` are the folders of this machine that it has. `before` are lines of a shell script that is run before anything is mounted; with `apart`, in a user namespace of its own.
    Programs may write to the folders in `written`: all that is in them on this machine leads there; to those in `empty`, too.
    """

    def __init__(self, also=None, shown=SHOWN, written=(), empty=(), before=(), apart=False):
        self._before, self._apart = list(before), ["--user", "--map-root-user"] if apart else []
        # Not below /tmp, where programs of the place have a folder of their own.
        self.root = tempfile.mkdtemp(prefix="adverb-bare-", dir="/var/tmp")
        self._mounts, self._theirs = [], set()
        shown = [name for name in shown if name not in written]
        for name in written and {f"/{name.split('/')[1]}" for name in written}:
            self._show(name, f"/below{name}")
        for name in shown:
            if os.path.islink(name):
                os.symlink(os.readlink(name), self.path(name))
            elif os.path.isdir(name):
                self._show(name, name)
        for shown, name in (also or {}).items():
            self._show(shown, name)
        for name in written:
            self._copy(name, {*written, *empty})
        for name in ("/proc", "/tmp", "/opt", "/var/tmp", HOME):
            os.makedirs(self.path(name), exist_ok=True)

    def _show(self, shown, name):
        self._theirs.add(self.path(name))
        os.makedirs(self.path(name), exist_ok=True)
        self._mounts.append(f"mount --rbind '{shown}' '{self.path(name)}'")

    def _copy(self, name, others):
        """A folder of links to what this machine has in it, but for other folders that are made, too."""
        os.makedirs(self.path(name), exist_ok=True)
        for inside in os.listdir(name):
            path = os.path.join(name, inside)
            if path not in others:
                os.symlink(os.readlink(path) if os.path.islink(path) else f"/below{path}", self.path(path))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root)

    def path(self, name):
        """A file of the place, as this script sees it."""
        return self.root + name

    def add(self, source, folder="/tmp"):
        """Copies a file into the place; its name there."""
        name = os.path.join(folder, os.path.basename(source))
        os.makedirs(self.path(folder), exist_ok=True)
        shutil.copy(source, self.path(name))
        return name

    def write(self, name, text):
        """Writes a file."""
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def result(self, script, **variables):
        """What a shell script in the place ends with. Mounts are of its processes alone, and end with them."""
        inside = f"cd {HOME}; {script}"
        lines = [*self._before, *self._mounts, f"mount --rbind /proc '{self.path('/proc')}'", 'exec chroot "$@"']
        environment = [f"{name}={value}" for name, value in {**ENVIRONMENT, **variables}.items()]
        return subprocess.run(
            ["unshare", *self._apart, "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines), "sh", self.root]
            + ["/usr/bin/env", "-i", *environment, "sh", "-euc", inside],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )

    def run(self, script, **variables):
        """What a script prints that must succeed."""
        result = self.result(script, **variables)
        if result.returncode != 0:
            raise Failed(f"$ {script}\n{result.stdout}{result.stderr}[status {result.returncode}]")
        return result.stdout

    def refused(self, script, why, **variables):
        """What a script prints that must fail, with these words."""
        result = self.result(script, **variables)
        said = result.stdout + result.stderr
        if result.returncode == 0 or why not in said:
            raise Failed(f"$ {script}\nwas to fail with {why!r}:\n{said}[status {result.returncode}]")
        return said

    def files(self):
        """All that stands in the place's own folders."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in self._theirs and name not in OTHERS]
            found.update(os.path.join(folder, name)[len(self.root) :] for name in [*folders, *names])
        return found

    def left(self, before):
        """Fails if something is there that was not."""
        more = self.files() - before
        if more:
            raise Failed(f"this was left behind: {', '.join(sorted(more)[:20])}")
