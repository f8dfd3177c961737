"""Checks the Kubernetes manifests: check-kubernetes.py SCONCE FILE…

Objects are validated by the schemas of Kubernetes, flags by the command, and a ScaledObject of KEDA, whose schema is not
in Kubernetes, by what it refers to.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

VERSION = "1.37"
root = pathlib.Path(__file__).resolve().parent.parent


def check_flags(sconce, arguments):
    """The command accepts the arguments of the container."""
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder, "keys")
        keys.write_text("0123456789abcdef0123456789abcdef\n")
        words = [str(keys) if word == "/keys/keys" else word for word in arguments]
        assert words[0] == "serve", words
        subprocess.run([sconce, "config", *words[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL)


def check_scaling(scaled, objects):
    """It scales an object of the file, by metrics that exist."""
    target = scaled["spec"]["scaleTargetRef"]
    assert any(o["kind"] == target["kind"] and o["metadata"]["name"] == target["name"] for o in objects), target
    known = set(re.findall(r"^\| `(\w+)`", (root / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus" and float(trigger["metadata"]["threshold"]) > 0
        metrics = re.findall(r"sconce_\w+", trigger["metadata"]["query"])
        assert metrics and known.issuperset(metrics), f"unknown metrics: {set(metrics) - known}"


sconce, *files = sys.argv[1:]
for file in files:
    objects = list(yaml.safe_load_all(pathlib.Path(file).read_text()))
    for one in objects:
        if one["kind"] == "ScaledObject":
            check_scaling(one, objects)
            continue
        kubernetes_validate.validate(one, VERSION, strict=True)
        if "template" in one["spec"]:
            for container in one["spec"]["template"]["spec"]["containers"]:
                check_flags(sconce, container["args"])
page = (root / "docs/guides/kubernetes.md").read_text()
assert (root / "packaging/kubernetes/sconce.yaml").read_text() in page, "the page shows another manifest"
