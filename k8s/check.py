"""Checks rendered manifests beyond their schema: `python k8s/check.py FILE…`.

Each container that stays up has probes; each container is locked down and sized; each variable is a setting of the
process it is given to, and none that it needs is missing; each address it is given is one that the network policies
let it reach. Exit code 1 with one line on standard error for each thing that is wrong.
"""

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Manifest = Mapping[str, Any]
ROOT = Path(__file__).resolve().parent.parent
COMPONENT = "app.kubernetes.io/component"
# Processes without a Config class: what they read, and must be given.
PLAIN = {"kit.migrate": {"DATABASE_URL"}}


def template_of(manifest: Manifest) -> Any:
    """The Pod template of a workload; None for what runs nothing."""
    spec = manifest.get("spec", {})
    return spec.get("jobTemplate", {}).get("spec", spec).get("template")


def settings_of(module: str) -> tuple[set[str], set[str]]:
    """The variables that a process knows, and those of them that it does not start without."""
    if module in PLAIN:
        return PLAIN[module], PLAIN[module]
    fields = dataclasses.fields(importlib.import_module(module).Config)
    known = {field.metadata["env"] for field in fields}
    return known, {field.metadata["env"] for field in fields if field.default is dataclasses.MISSING}


def module_of(container: Manifest) -> str:
    """The Python module that a container runs; empty where it runs none."""
    found = re.search(r"-m (\S+)", " ".join([*container.get("command", []), *container.get("args", [])]))
    return found[1] if found else ""


def check_container(container: Manifest, pod: Manifest, stays_up: bool) -> Iterator[str]:
    """What is wrong with one container."""
    security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    if stays_up and not ("readinessProbe" in container and "livenessProbe" in container):
        yield "has no readiness and liveness probe"
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "may run as root"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write to its root file system"
    if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "keeps privileges"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
        yield "asks for no CPU and memory, or has no limit on memory"
    module = module_of(container)
    if not module:
        yield "runs no module that this check knows"
        return
    if not (ROOT / (module.replace(".", "/") + ".py")).exists():
        yield f"runs {module}, which is not in the tree"
        return
    given = [variable["name"] for variable in container.get("env", [])]
    try:
        known, needed = settings_of(module)
    except ImportError as error:
        yield f"runs {module}, which cannot be imported: {error}"
        return
    for name in sorted(set(given) - known):
        yield f"sets {name}, which is not a setting of {module}"
    for name in sorted(needed - set(given)):
        yield f"does not set {name}, which {module} needs"
    if len(given) != len(set(given)):
        yield "sets a variable twice"
    if "envFrom" in container:
        yield "takes variables by envFrom, which this check cannot see"


def check_pod(pod: Manifest) -> Iterator[str]:
    """What is wrong with a Pod as a whole."""
    if pod.get("automountServiceAccountToken") is not False:
        yield "mounts a service account token"
    if pod.get("enableServiceLinks") is not False:
        yield "has service links, whose TEAMLORE_… variables our processes refuse"
    if pod.get("terminationGracePeriodSeconds") != 30:
        yield "has no 30 s to drain"
    if pod.get("serviceAccountName", "default") == "default":
        yield "runs as the default service account"


def _selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    for rule in selector.get("matchExpressions", []):
        if rule["operator"] != "In" or labels.get(rule["key"]) not in rule["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _allowed(policies: list[Manifest], direction: str, ours: Mapping[str, str], others: Mapping[str, str], port: int) -> bool:
    ends = "to" if direction == "egress" else "from"
    for policy in policies:
        if not _selects(policy["spec"]["podSelector"], ours):
            continue
        for rule in policy["spec"].get(direction, []):
            ports = [(entry["port"], entry.get("endPort", entry["port"])) for entry in rule.get("ports", [])]
            peers = [peer.get("podSelector", {}) for peer in rule.get(ends, []) if "namespaceSelector" not in peer]
            if any(first <= port <= last for first, last in ports) and any(_selects(peer, others) for peer in peers):
                return True
    return False


def check_network(manifests: list[Manifest]) -> Iterator[str]:
    """Addresses that no Service has, or that the policies do not let through."""
    policies = [each for each in manifests if each["kind"] == "NetworkPolicy"]
    services = {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "Service"}
    if not any(policy["spec"]["podSelector"] == {} and len(policy["spec"]["policyTypes"]) == 2
               and not policy["spec"].get("ingress") and not policy["spec"].get("egress") for policy in policies):  # fmt: skip
        yield "no network policy denies what is not allowed"
    for manifest in manifests:
        template = template_of(manifest)
        for container in template["spec"]["containers"] if template else []:
            for variable in container.get("env", []):
                found = re.fullmatch(r"(?:http://)?([a-z0-9.-]+):(\d+)", variable.get("value", ""))
                if not found or variable["name"] == "TEAMLORE_LISTEN" or found[1] == "127.0.0.1":
                    continue
                where = f"{manifest['kind']} {manifest['metadata']['name']}: {variable['name']}={variable['value']}"
                service = services.get(found[1])
                port = int(found[2])
                if service is None or port not in [entry["port"] for entry in service["ports"]]:
                    yield f"{where} is no Service here"
                    continue
                ours, others = template["metadata"]["labels"], service["selector"]
                if not _allowed(policies, "egress", ours, others, port):
                    yield f"{where} is not let out by any network policy"
                if not _allowed(policies, "ingress", others, ours, port):
                    yield f"{where} is not let in by any network policy"


def check(manifests: list[Manifest]) -> Iterator[str]:
    """All that is wrong with a rendered kustomization."""
    guarded = [each["spec"]["selector"] for each in manifests if each["kind"] == "PodDisruptionBudget"]
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Secret":
            yield f"Secret {name} is committed; README.md says how Secrets are made"
        template = template_of(manifest)
        if template is None:
            continue
        pod = template["spec"]
        for wrong in check_pod(pod):
            yield f"{kind} {name} {wrong}"
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            for wrong in check_container(container, pod, kind not in ("Job", "CronJob")):
                yield f"{kind} {name}, container {container['name']} {wrong}"
        if kind == "Deployment" and not any(_selects(selector, template["metadata"]["labels"]) for selector in guarded):
            yield f"{kind} {name} has no disruption budget"
    yield from check_network(manifests)


def main() -> None:
    """The command."""
    wrong = []
    for path in map(Path, sys.argv[1:]):
        manifests = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
        wrong += [f"{path.stem}: {line}" for line in check(manifests)]
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong or len(sys.argv) < 2 else 0)


if __name__ == "__main__":
    main()
