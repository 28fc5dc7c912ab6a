"""The GitHub action and the GitLab include: taken by linters, and their steps run as scripts."""

import os
import shlex
import subprocess

import use
from bare import Bare
from built import ROOT, run, tool
from harness.report import Failed

ACTION = os.path.join(ROOT, "action.yml")
INCLUDE = os.path.join(ROOT, "packaging/ci/gitlab.yml")
SCRIPTS = ["packaging/install.sh", "packaging/ci/setup"]


def load(path):
    """A YAML file, as the linters' own reader has it."""
    code = "import json, sys; from ruamel.yaml import YAML; print(json.dumps(YAML(typ='safe').load(open(sys.argv[1]))))"
    import json

    return json.loads(run(tool("python"), "-c", code, path))


def linted():
    """The services' own schemas, and the shell's linter."""
    check = tool("check-jsonschema")
    run(check, "--builtin-schema", "vendor.github-actions", ACTION)
    run(check, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", INCLUDE)
    run("shellcheck", *(os.path.join(ROOT, script) for script in SCRIPTS))
    version = next(line for line in open(os.path.join(ROOT, "Cargo.toml")) if line.startswith("version = ")).split('"')[1]
    for path in (INCLUDE, os.path.join(ROOT, "packaging/install.sh")):
        text = open(path).read()
        if f"v{version}/" not in text and f"version={version}\n" not in text:
            raise Failed(f"{path} is not of version {version}")


def outputs(bare, name):
    """What a step has written for later ones."""
    with open(bare.path(name)) as file:
        return file.read().splitlines()


def action(path):
    """The steps of the action, then a job's own step: with the path that they have set, and without `adverb run` where that was asked for."""
    (step,) = load(ACTION)["runs"]["steps"]
    with Bare() as bare:
        package = bare.add(path)
        for script in SCRIPTS:
            bare.add(os.path.join(ROOT, script), os.path.join("/opt/action", os.path.dirname(script)))
        for everywhere in ("false", "true"):
            inputs = {"package": package, "sha256": "", "devices": "roce0,iwarp0", "everywhere": everywhere}
            values = {name: value for name, value in step["env"].items()}
            environment = {}
            for name, value in values.items():
                (asked,) = [key for key in inputs if value == "${{ inputs." + key + " }}"]
                environment[name] = inputs[asked]
            bare.write("/tmp/github/path", "")
            bare.write("/tmp/github/env", "")
            bare.write("/tmp/github/output", "")
            files = {f"GITHUB_{name.upper()}": f"/tmp/github/{name}" for name in ("path", "env", "output")}
            runner = {"GITHUB_ACTION_PATH": "/opt/action", "RUNNER_TEMP": "/tmp/runner"}
            # As GitHub starts a step with `shell: bash`.
            script = f"bash --noprofile --norc -eo pipefail -c {shlex.quote(step['run'])}"
            bare.run(script, **environment, **files, **runner)
            later = dict(line.split("=", 1) for line in outputs(bare, "/tmp/github/env"))
            later["PATH"] = ":".join([*outputs(bare, "/tmp/github/path"), "/usr/bin:/bin:/usr/sbin"])
            if outputs(bare, "/tmp/github/output") != ["folder=/tmp/runner/adverb"]:
                raise Failed(f"the action says {outputs(bare, '/tmp/github/output')}")
            command = "ibv_devices" if everywhere == "true" else "adverb run -- ibv_devices"
            said = bare.run(command, **later)
            if "roce0" not in said or "iwarp0" not in said:
                raise Failed(f"$ {command}\n{said}")
        bare.write("/tmp/text", "no tarball")
        bare.refused("/opt/action/packaging/ci/setup /tmp/none /tmp/text", "not a tarball of adverb")
        if os.path.exists(bare.path("/tmp/none")):
            raise Failed("the action has left something")


def include(path):
    """The include's lines, in one shell with the job's own, as GitLab's runner has them."""
    job = load(INCLUDE)[".adverb"]
    with Bare() as bare:
        package, installer = bare.add(path), bare.add(os.path.join(ROOT, SCRIPTS[0]))
        bare.write("/home/user/project/Makefile", "test:\n\tibv_devinfo\n")
        variables = {**job["variables"], "CI_PROJECT_DIR": "/home/user/project"}
        variables |= {"SETUP_ADVERB_INSTALLER": f"file://{installer}", "SETUP_ADVERB_PACKAGE": package}
        lines = ["cd project", *job["before_script"], "adverb run -- make test"]
        said = bare.run("\n".join(lines), **variables)
        if "hca_id:\troce0" not in said:
            raise Failed(said)
        bare.run("rm -r project/.adverb")
        bare.write("/tmp/text", "no tarball")
        # The installer refuses what it gets, or there is no installer.
        for changed, why in (
            ({"SETUP_ADVERB_PACKAGE": "/tmp/text"}, "not a tarball of adverb"),
            ({"SETUP_ADVERB_INSTALLER": "file:///tmp/none"}, "curl: (37)"),
        ):
            bare.refused("\n".join(lines), why, **{**variables, **changed})
            if os.listdir(bare.path("/home/user/project")) != ["Makefile"]:
                raise Failed(f"the include has left {os.listdir(bare.path('/home/user/project'))} after {why!r}")


def tests(packages):
    yield "linters_take_the_action_and_the_include", linted
    yield "the_steps_of_the_action_give_a_job_devices", lambda: action(packages[".tar.gz"])
    yield "the_lines_of_the_include_give_a_job_devices", lambda: include(packages[".tar.gz"])
