"""The manifests for Kubernetes: by its schemas, and by this program, whose options, settings, paths and ports they name."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed import DEPLOY, ROOT, kopsctl, kopsd, run
from support import proc, raw
from support.daemon import Daemon

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATIONS = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml"))
SCHEMAS = ("1.30", "1.34")  # ValidatingAdmissionPolicy is v1 from 1.30 on
NAMESPACES = "/run/kopsd/namespaces"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for folder in KUSTOMIZATIONS
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
        for document in documents(folder / name)
    ]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in manifests() if document["kind"] == kind]


def one(kind: str) -> dict[str, Any]:
    (found,) = of_kind(kind)
    return found


def pods() -> list[dict[str, Any]]:
    return [one("DaemonSet")["spec"]["template"]["spec"], *(pod["spec"] for pod in of_kind("Pod"))]


def container(name: str) -> dict[str, Any]:
    return next(c for c in one("DaemonSet")["spec"]["template"]["spec"]["containers"] if c["name"] == name)


def mounts(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["mountPath"]: mount for mount in one["volumeMounts"]}


def commands() -> list[list[str]]:
    """All that manifests have run."""
    found = [one["args"] for pod in pods() for one in pod["containers"]]
    return found + [probe["exec"]["command"] for name, probe in container("kopsd").items() if name.endswith("Probe")]


# ---- as Kubernetes sees them ----


def test_every_file_is_used() -> None:
    used = {folder / name for folder in KUSTOMIZATIONS for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]}
    there = set(FOLDER.rglob("*.yaml")) - {folder / "kustomization.yaml" for folder in KUSTOMIZATIONS}
    assert used == there
    generated = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))["configMapGenerator"]
    assert [(item["name"], item["files"]) for item in generated] == [("kopsd", ["kopsd.conf"])]


@pytest.mark.parametrize("version", SCHEMAS)
def test_schemas(version: str) -> None:
    """Strictly: a misspelt key is an error."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in manifests():
        if document["apiVersion"].startswith("monitoring.coreos.com/"):  # of the Prometheus operator
            continue
        validate.validate(document, version, strict=True)


def test_names_agree() -> None:
    daemons, service, monitor, policy = one("DaemonSet"), one("Service"), one("ServiceMonitor"), one("NetworkPolicy")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert daemons["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    (port,) = container("metrics")["ports"]
    assert service["spec"]["ports"] == [{"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    assert policy["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    assert container("metrics")["readinessProbe"]["httpGet"]["port"] == port["name"]
    (volume,) = of_kind("PersistentVolume")
    (claim,) = of_kind("PersistentVolumeClaim")
    assert volume["spec"]["claimRef"] == {key: claim["metadata"][key] for key in ("namespace", "name")}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    namespaces = {namespace["metadata"]["name"] for namespace in of_kind("Namespace")}
    for folder in KUSTOMIZATIONS:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
        assert kustomization.get("namespace", "kopsd") in namespaces
        assert all(image["name"] == "kopsd" for image in kustomization.get("images", []))
    assert {one["image"] for pod in pods() for one in pod["containers"]} == {"kopsd"}


def test_volumes_and_mounts_agree() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert volumes == {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}


def test_containers_are_confined() -> None:
    for pod in pods():
        assert not any(pod.get(key) for key in ("hostPID", "hostIPC", "hostNetwork", "hostUsers"))
        assert pod["automountServiceAccountToken"] is False
        for one in pod["containers"]:
            security = one["securityContext"]
            assert security["allowPrivilegeEscalation"] is False and not security.get("privileged")
            assert security["capabilities"]["drop"] == ["ALL"]
            assert {"memory"} <= set(one["resources"]["limits"]) and {"cpu", "memory"} <= set(one["resources"]["requests"])
    assert container("kopsd")["securityContext"]["capabilities"]["add"] == ["SETUID", "SETGID", "KILL", "CHOWN"]
    assert container("kopsd")["securityContext"]["readOnlyRootFilesystem"] is True


def test_pods_mount_the_folder_of_their_own_namespace_alone() -> None:
    for pod in of_kind("Pod"):
        (mount,) = (mount for one in pod["spec"]["containers"] for mount in one["volumeMounts"])
        assert mount["readOnly"] is True
        (volume,) = pod["spec"]["volumes"]
        namespace = pod["metadata"]["namespace"]
        if "hostPath" in volume:
            assert volume["hostPath"]["path"] == f"{NAMESPACES}/{namespace}"
        else:
            (claim,) = (c for c in of_kind("PersistentVolumeClaim") if c["metadata"]["namespace"] == namespace)
            assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (volume,) = of_kind("PersistentVolume")
    assert volume["spec"]["hostPath"]["path"] == f"{NAMESPACES}/{volume['spec']['claimRef']['namespace']}"


# ---- the admission policy ----


def admitted(pod: dict[str, Any], namespace: str) -> bool:
    celpy = pytest.importorskip("celpy", reason="cel-python is not installed")
    from celpy.adapter import json_to_cel

    environment = celpy.Environment()

    def value(expression: str, known: dict[str, Any]) -> Any:
        return environment.program(environment.compile(expression)).evaluate(known)

    policy = one("ValidatingAdmissionPolicy")["spec"]
    known: dict[str, Any] = {"object": json_to_cel(pod), "request": json_to_cel({"namespace": namespace})}
    variables = celpy.celtypes.MapType()
    for variable in policy["variables"]:
        variables[celpy.celtypes.StringType(variable["name"])] = value(variable["expression"], known)
    known["variables"] = variables
    return all(bool(value(validation["expression"], known)) for validation in policy["validations"])


def pod_with(path: str | None, read_only: bool | None = True, where: str = "containers") -> dict[str, Any]:
    mount = {"name": "v", "mountPath": "/x", **({} if read_only is None else {"readOnly": read_only})}
    spec: dict[str, Any] = {"containers": [{"name": "c"}], "volumes": [{"name": "other", "emptyDir": {}}]}
    if path is not None:
        spec["volumes"].append({"name": "v", "hostPath": {"path": path}})
        spec.setdefault(where, []).append({"name": "d", "volumeMounts": [mount, {"name": "other", "mountPath": "/y"}]})
    return {"spec": spec}


@pytest.mark.parametrize(
    ("pod", "allowed"),
    [
        ({"spec": {"containers": [{"name": "c"}]}}, True),
        (pod_with(None), True),
        (pod_with(f"{NAMESPACES}/team-b"), True),
        (pod_with(f"{NAMESPACES}/team-b", where="initContainers"), True),
        (pod_with(f"{NAMESPACES}/team-b", read_only=False), False),
        (pod_with(f"{NAMESPACES}/team-b", read_only=None), False),
        (pod_with(f"{NAMESPACES}/team-b", read_only=None, where="initContainers"), False),
        (pod_with(f"{NAMESPACES}/team-b", read_only=False, where="ephemeralContainers"), False),
        (pod_with(f"{NAMESPACES}/team-a"), False),
        (pod_with(f"{NAMESPACES}/team-b/../team-a"), False),
        (pod_with(NAMESPACES), False),
        (pod_with("/run"), False),
        (pod_with("/"), False),
        (pod_with("/var/run/kopsd/namespaces/team-a"), False),
    ],
)
def test_the_policy_admits(pod: dict[str, Any], allowed: bool) -> None:
    assert admitted(pod, "team-b") == allowed


def test_the_examples_are_admitted() -> None:
    for pod in of_kind("Pod"):
        if pod["metadata"]["namespace"] == "team-b":
            assert admitted(pod, "team-b")
    (binding,) = of_kind("ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == one("ValidatingAdmissionPolicy")["metadata"]["name"]
    labels = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
    bound = [n["metadata"]["name"] for n in of_kind("Namespace") if labels.items() <= n["metadata"].get("labels", {}).items()]
    assert bound == ["team-b"]


# ---- as this program sees them ----


def settings() -> str:
    return (FOLDER / "kopsd.conf").read_text(encoding="utf-8")


def test_the_settings_are_valid() -> None:
    done = kopsd("--check-config", "--config", str(FOLDER / "kopsd.conf"))
    assert (done.returncode, done.stderr) == (0, "")
    printed = kopsd("--print-config", "--config", str(FOLDER / "kopsd.conf")).stdout
    mounted = mounts(container("kopsd"))
    socket = next(line.split(" = ")[1] for line in printed.splitlines() if line.startswith("socket = "))
    assert os.path.dirname(socket) in mounted and os.path.dirname(socket) in mounts(container("metrics"))
    assert f"path = {NAMESPACES}/*/kopsd.sock" in printed and NAMESPACES in mounted
    assert mounted["/etc/kopsd/kopsd.conf"]["subPath"] == "kopsd.conf"
    environment = {entry["name"]: entry["value"] for entry in container("kopsd")["env"]}
    volumes = {volume["name"]: volume for volume in one("DaemonSet")["spec"]["template"]["spec"]["volumes"]}
    # An emptyDir has mode 0777, which the daemon takes neither for its sockets' folders nor for its cache.
    for path in (os.path.dirname(socket), NAMESPACES):
        assert "hostPath" in volumes[mounted[path]["name"]] and volumes[mounted[path]["name"]]["hostPath"]["path"] == path
    for name in ("CACHE_DIRECTORY", "CUDA_CACHE_PATH"):
        assert environment[name] not in mounted and os.path.dirname(environment[name]) in mounted


def test_commands_are_of_these_programs() -> None:
    for command in commands():
        program, *arguments = command
        assert program in ("kopsd", "kopsctl", "python3"), command
        if program == "kopsctl":
            at = arguments.index("--socket")
            assert arguments[at + 1] == "/run/kopsd/kopsd.sock"
            helped = kopsctl(arguments[at + 2], "--help")
            options = [word for word in arguments[at + 3 :] if word.startswith("--")]
            assert helped.returncode == 0 and all(option in helped.stdout for option in options), (command, helped.stdout)
        elif program == "kopsd":
            assert all(word in kopsd("--help").stdout for word in arguments)


def test_the_image() -> None:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    assert "kops-executor" in text and "kops-executor" in kopsd("--print-config", "--config", os.devnull, "--socket", "/tmp/x.sock").stdout
    extras = re.search(r"\[([a-z,]+)\]", text)
    project = (ROOT / "client_py" / "pyproject.toml").read_text(encoding="utf-8")
    assert extras and all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))
    assert "build/wheel/dist/kops-*.whl" in text and "build/wheel/dist" in (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^RUN ((?:.*\\\n)*.*)", text, re.M)
    lines = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    assert subprocess.run(["bash", "-n", "-c", lines], check=False).returncode == 0


# ---- the daemon of the manifests, here ----


class Node(Daemon):
    """With the settings and the arguments of the manifests, but in a folder of its own, and without a GPU."""

    def __init__(self) -> None:
        (_, *arguments) = container("kopsd")["args"]
        super().__init__(*arguments, config="", give_socket=False, start=False)
        text = settings().replace("/run/kopsd", str(self.folder)) + "[server]\nbackend = host\n"
        (self.folder / "kopsd.conf").write_text(text, encoding="utf-8")
        (self.folder / "namespaces").mkdir()
        (self.folder / "empty").mkdir()
        (self.folder / "empty").chmod(0o777)  # an emptyDir, as it is mounted
        self.env["CACHE_DIRECTORY"] = str(self.folder / "empty" / "kopsd")

    def here(self, command: list[str]) -> list[str]:
        return [word.replace("/run/kopsd", str(self.folder)) for word in command]

    def socket_of(self, namespace: str) -> str:
        return str(self.folder / "namespaces" / namespace / "kopsd.sock")

    def served(self, namespace: str) -> bool:
        try:
            with raw.Connection(self.socket_of(namespace)) as connection:
                return bool(connection.call("hello")["identity"] == namespace)
        except (OSError, raw.Closed):
            return False


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as daemon:
        daemon.start()
        yield daemon


def test_the_first_pod_of_a_namespace_makes_its_folder(node: Node) -> None:
    (node.folder / "namespaces" / "team-a").mkdir()  # as the kubelet does
    proc.eventually(lambda: node.served("team-a"), node.log)
    assert os.stat(node.socket_of("team-a")).st_mode & 0o777 == 0o666
    assert os.stat(node.folder / "empty" / "kopsd").st_mode & 0o777 == 0o700
    assert not [line for line in node.log().splitlines() if "level=info" not in line], node.log()


def test_probes_and_metrics(node: Node) -> None:
    for name, probe in container("kopsd").items():
        if name.endswith("Probe"):
            assert kopsctl(*node.here(probe["exec"]["command"])[1:]).returncode == 0
    (program, *arguments) = node.here(container("metrics")["args"])
    assert program == "kopsctl"
    at = arguments.index("--listen")
    printed = kopsctl(*arguments[:at])
    assert printed.returncode == 0 and "kopsd_up 1" in printed.stdout or "kopsd_build_info" in printed.stdout


def test_the_pod_s_program(node: Node) -> None:
    """The example's Python, and the other one's kopsctl."""
    pytest.importorskip("numpy")
    for pod in of_kind("Pod"):
        namespace = pod["metadata"]["namespace"]
        (node.folder / "namespaces" / namespace).mkdir()
        proc.eventually(lambda name=namespace: node.served(name), node.log)  # type: ignore[misc]
        command = [word.replace("/run/kopsd/kopsd.sock", node.socket_of(namespace)) for word in pod["spec"]["containers"][0]["args"]]
        if command[0] == "kopsctl":
            done = kopsctl(*command[1:])
        else:
            import sys

            done = run(sys.executable, *command[1:], env={**os.environ, "PYTHONPATH": str(ROOT / "client_py")})
            assert f"identity: {namespace}" in done.stdout
        assert done.returncode == 0, (shlex.join(command), done.stdout, done.stderr)


def test_sockets_come_back_when_the_daemon_is_restarted(node: Node) -> None:
    """The supervisor starts another server, which finds the folders."""
    (node.folder / "namespaces" / "team-a").mkdir()
    proc.eventually(lambda: node.served("team-a"), node.log)
    with node.connect() as connection:
        server: Callable[[], int] = lambda: int(connection.call("hello")["pid"])  # noqa: E731
        before = server()
    os.kill(before, signal.SIGKILL)
    proc.eventually(lambda: node.served("team-a"), node.log)
    with node.connect() as connection:
        assert connection.call("hello")["pid"] != before
    assert json.loads(kopsctl("--socket", node.socket_of("team-a"), "clients", "--json").stdout)["clients"][0]["identity"] == "team-a"
