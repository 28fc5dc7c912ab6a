"""Devices for containers: the file of `adverb cdi`, and what a container engine makes of it."""

import json
import os
import shutil
import tempfile

from bare import Bare
from built import ROOT, run, tool
from harness.report import Failed

# The client comes again until the server listens.
PAIR = """
rping -s -C 3 & server=$!
tries=0
until rping -c -a 127.0.0.1 -C 3; do
  tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1
  sleep 0.1
done
wait $server
"""
SCHEMA = os.path.join(ROOT, "packaging/cdi.schema.json")


def specified(package, test, *options):
    """Has a test look at the file that the command of a tarball prints: its path, and what it says."""
    with tempfile.TemporaryDirectory(prefix="adverb-cdi-", dir="/var/tmp") as folder:
        run("tar", "-xzf", package, "-C", folder)
        (name,) = os.listdir(folder)
        file = os.path.join(folder, "adverb.json")
        with open(file, "w") as opened:
            opened.write(run(os.path.join(folder, name, "bin/adverb"), "cdi", *options))
        with open(file) as opened:
            test(file, json.load(opened))


def checked(file, said):
    run(tool("check-jsonschema"), "--schemafile", SCHEMA, file)
    wrong = json.loads(json.dumps(said).replace("hostPath", "path", 1))
    with open(file, "w") as opened:
        json.dump(wrong, opened)
    try:
        run(tool("check-jsonschema"), "--schemafile", SCHEMA, file)
    except Failed:
        return
    raise Failed("the schema takes a mount without a hostPath")


def started(device, wanted):
    """A container of an engine that does with the file what it says: here a folder with the distribution's programs."""

    def test(_, said):
        (chosen,) = [known["containerEdits"] for known in said["devices"] if known["name"] == device]
        edits = [said.get("containerEdits", {}), chosen]
        with Bare() as bare:
            for mount in [mount for part in edits for mount in part.get("mounts", [])]:
                inside = bare.path(mount["containerPath"])
                os.makedirs(os.path.dirname(inside), exist_ok=True)
                shutil.copy(mount["hostPath"], inside)
            variables = dict(entry.split("=", 1) for part in edits for entry in part.get("env", []))
            shown = bare.run("ibv_devices", **variables).split()
            if wanted not in shown:
                raise Failed(f"{wanted} is not among {shown}")
            bare.run(PAIR, **variables)

    return test


def tests(packages):
    package = packages[".tar.gz"]
    yield "the_cdi_file_is_as_its_specification_says", lambda: specified(package, checked)
    for device, wanted in (("all", "roce0"), ("iwarp0", "iwarp0")):
        yield f"a_container_has_the_cdi_device_{device}", lambda device=device, wanted=wanted: specified(package, started(device, wanted))
