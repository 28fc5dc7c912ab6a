"""The YAML that pages show: the schemas of the services, the shell's linter for its scripts, and the inputs of our action."""

import json
import os
import re
import tempfile

import blocks
from harness.report import Failed
from pypi import run, tool

CHECK = "check-jsonschema==0.39.0"
KUBERNETES = "kubernetes-validate==1.37.0"
READER = "import json, sys; from ruamel.yaml import YAML; print(json.dumps(YAML(typ='safe').load(sys.stdin)))"
ACTION = "adverb-rdma/adverb@v"


def install(target):
    """What comes from a network."""
    tool(target, CHECK, "check-jsonschema")
    tool(target, KUBERNETES, "kubernetes-validate")


class Services:
    def __init__(self, root, target, adverb):
        self._target, self._commands = target, blocks.Commands(root, adverb)
        with open(os.path.join(root, "action.yml")) as action, open(os.path.join(root, "Cargo.toml")) as manifest:
            self._inputs = set(self._read(action.read())["inputs"])
            self._version = re.search(r'^version = "(.*)"', manifest.read(), re.MULTILINE)[1]

    def _read(self, text):
        return json.loads(run(tool(self._target, CHECK, "python"), "-c", READER, text=text))

    def _fits(self, package, program, value, *options):
        """A program takes the value, written as a file."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(value, file)
            file.flush()
            run(tool(self._target, package, program), *options, file.name)

    def _script(self, text, shell="bash"):
        """A linter reads it, with a word in place of each value of the hosting, and our commands know their options."""
        text = re.sub(r"\$\{\{.*?\}\}", "value", text)
        run("shellcheck", f"--shell={shell}", "-", text=text)
        for problem in self._commands.wrong(text):
            if problem:
                raise Failed(problem)

    def _workflow(self, value):
        self._fits(CHECK, "check-jsonschema", value, "--builtin-schema", "vendor.github-workflows")
        for job in value["jobs"].values():
            for step in job["steps"]:
                self._script(step.get("run", ""))
                if step.get("uses", "").startswith("adverb-rdma/"):
                    wrong = set(step.get("with", ())) - self._inputs
                    if wrong or step["uses"] != ACTION + self._version:
                        raise Failed(f"{step['uses']}: this is version {self._version}, and its action has no input {sorted(wrong)}")

    def _gitlab(self, value):
        self._fits(CHECK, "check-jsonschema", value, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")
        for job in (job for name, job in value.items() if name != "include"):
            self._script("\n".join([*job.get("before_script", ()), *job["script"]]))

    def _pod(self, value):
        self._fits(KUBERNETES, "kubernetes-validate", value, "--strict")
        for container in [*value["spec"]["initContainers"], *value["spec"]["containers"]]:
            words = container["command"]
            self._script(words[2] if words[:2] == ["sh", "-c"] else " ".join(words), "sh")

    def check(self, text):
        """A block of YAML, by what it is."""
        value = self._read(text)
        if isinstance(value, list):
            self._workflow({"on": "push", "jobs": {"test": {"runs-on": "ubuntu-24.04", "steps": value}}})
        elif "jobs" in value:
            self._workflow({"on": "push", **value})
        elif "apiVersion" in value:
            self._pod(value)
        else:
            self._gitlab(value)


def check(root, target, adverb, file):
    """The blocks of YAML of a page."""
    services, count = Services(root, target, adverb), 0
    with open(os.path.join(root, file)) as opened:
        text = opened.read()
    for line, kind, block in blocks.fences(text):
        if kind == "yaml":
            count += 1
            try:
                services.check(block)
            except Failed as failure:
                raise Failed(f"{file}:{line}: {failure}") from None
    return f"{count} blocks"


# One mistake for each kind.
WRONG = (
    ("jobs:\n  a:\n    runs_on: ubuntu-24.04\n    steps: [{run: ls}]\n", "runs_on"),
    ("- run: adverb rnu -- ls\n", "'rnu'"),
    ("- run: cat $FILE\n", "SC2086"),
    ("- {uses: adverb-rdma/adverb@v0.0.0}\n", "this is version"),
    ("a:\n  scirpt: [ls]\n", "scirpt"),
    ("include: [{remote: 'https://a/b.yml'}]\na:\n  script: [adverb rnu -- ls]\n", "'rnu'"),
    ("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {container: []}}\n", "container"),
)


def mistakes(root, target, adverb):
    services = Services(root, target, adverb)
    for text, wanted in WRONG:
        try:
            services.check(text)
        except Failed as failure:
            if wanted not in str(failure):
                raise Failed(f"{text!r}: {failure}") from None
        else:
            raise Failed(f"{text!r} is taken for right")
