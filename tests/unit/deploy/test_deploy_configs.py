"""Configurations are valid, and agree with the manifests, the image, Compose and systemd."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from infergate.config import Config, load
from infergate.config import compile as compiled
from infergate.config.load import parse
from infergate.config.values import parse_duration

PROJECT = Path(__file__).parents[3]
DEPLOY = PROJECT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("base", "sidecar", "fleet")
CONFIGS = [
    *(DEPLOY / "docker" / name for name in ("image.yaml", "routes.yaml")),
    *(KUBERNETES / overlay / "routes.yaml" for overlay in (*OVERLAYS, "endpoint-slices")),
    DEPLOY / "rollouts" / "argo" / "routes.yaml",
]
WORKER_BYTES = 100 * 2**20
"""An upper bound for the memory of an idle process."""
STOP_SECONDS = 10
"""Seconds allowed after the drain: 5 to export the last spans or stop a hanging worker, 5 spare."""

Manifest = dict[str, Any]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_file_is_a_valid_configuration(path: Path) -> None:
    config = load(path, {})
    assert compiled.routing_table(config).routes
    assert compiled.addresses(config)


@pytest.mark.parametrize("name", ["sidecar-trt.yaml", "triton.yaml"])
def test_the_environment_sets_the_addresses_of_listeners(name: str) -> None:
    ports = {"http": 18100, "grpc": 18101, "admin": 18102}
    environment = {f"INFERGATE_{name.upper()}_PORT": str(port) for name, port in ports.items()}
    environment["INFERGATE_HOST"] = "0.0.0.0"
    addresses = compiled.addresses(load(PROJECT / "config" / name, environment))
    assert {key: str(addresses[key]) for key in ports} == {
        key: f"0.0.0.0:{port}" for key, port in ports.items()
    }


def max_memory(config: Config) -> int:
    """Return the maximum memory of all processes and of requests in flight, in bytes."""
    processes = config.workers * (1 + config.helpers) + (config.workers > 1)
    in_flight = compiled.limits(config).in_flight_bytes * config.workers
    return 3 * in_flight + processes * WORKER_BYTES


def test_every_configuration_is_tested() -> None:
    paths = {path for path in DEPLOY.rglob("*.yaml") if "routes:" in path.read_text("utf-8")}
    # peers/test_helm.py tests the chart
    elsewhere = DEPLOY / "helm", DEPLOY / "kserve" / "inference-service.yaml"
    assert {each for each in paths if not any(map(each.is_relative_to, elsewhere))} == set(CONFIGS)


# ---- kubernetes: the manifests that kustomize renders --------------------------------------------


@cache
def rendered_manifests(overlay: str) -> tuple[Manifest, ...]:
    """Return the rendered manifests. Skips the test without kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl with kustomize")
    argv = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    result = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return tuple(yaml.safe_load_all(result.stdout))


def manifests_of_kind(overlay: str, kind: str) -> list[Manifest]:
    return [each for each in rendered_manifests(overlay) if each["kind"] == kind]


def manifest(overlay: str, kind: str) -> Manifest:
    (single,) = manifests_of_kind(overlay, kind)
    return single


def pod(overlay: str) -> Manifest:
    template: Manifest = manifest(overlay, "Deployment")["spec"]["template"]
    return template


def gateway(overlay: str) -> Manifest:
    container: Manifest
    containers = pod(overlay)["spec"]["containers"]
    (container,) = (each for each in containers if each["name"] == "infergate")
    return container


def config_of(overlay: str) -> Config:
    return parse(manifest(overlay, "ConfigMap")["data"]["routes.yaml"], overlay, {})


def mebibytes(amount: str) -> int:
    units = {"Mi": 1, "Gi": 1024}
    return int(amount[:-2]) * units[amount[-2:]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_mounts_its_configuration(overlay: str) -> None:
    config = manifest(overlay, "ConfigMap")
    spec = pod(overlay)["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    mounts = gateway(overlay)["volumeMounts"]
    (mount,) = (each for each in mounts if "infergate" in each["mountPath"])
    assert volumes[mount["name"]]["configMap"]["name"] == config["metadata"]["name"]
    assert "subPath" not in mount  # a mounted subPath is never updated
    assert gateway(overlay)["args"] == ["--config", f"{mount['mountPath']}/routes.yaml"]
    assert set(config["data"]) == {"routes.yaml"}
    assert config["data"]["routes.yaml"] == (KUBERNETES / overlay / "routes.yaml").read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_container_ports_equal_the_ports_of_the_listeners(overlay: str) -> None:
    addresses = compiled.addresses(config_of(overlay))
    ports = {each["name"]: each["containerPort"] for each in gateway(overlay)["ports"]}
    assert ports == {name: address.port for name, address in addresses.items()}
    assert {address.host for address in addresses.values()} == {"0.0.0.0"}
    for service in manifests_of_kind(overlay, "Service"):
        if service["spec"]["selector"] == pod(overlay)["metadata"]["labels"]:
            assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports.keys()
            assert all(each["port"] == ports[each["name"]] for each in service["spec"]["ports"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_and_the_grace_period_fit_the_drain(overlay: str) -> None:
    container, drain = gateway(overlay), config_of(overlay).drain
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "startup")}
    assert set(paths.values()) == {"/healthz"}  # a drain or a dead backend must not cause a restart
    readiness = container["readinessProbe"]
    assert readiness["httpGet"] == {"path": "/readyz", "port": "admin"}
    delay = readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    assert drain.delay > delay  # endpoints are updated before the port closes
    grace = pod(overlay)["spec"]["terminationGracePeriodSeconds"]
    assert grace >= drain.delay + drain.timeout + STOP_SECONDS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_gateway_has_minimal_privileges(overlay: str) -> None:
    spec, container = pod(overlay)["spec"], gateway(overlay)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert f"USER {spec['securityContext']['runAsUser']}:" in DOCKERFILE


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_memory_limit_covers_requests_in_flight(overlay: str) -> None:
    limits = gateway(overlay)["resources"]["limits"]
    assert mebibytes(limits["memory"]) * 2**20 >= max_memory(config_of(overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_match_the_gateways(overlay: str) -> None:
    labels = pod(overlay)["metadata"]["labels"]
    assert manifest(overlay, "Deployment")["spec"]["selector"]["matchLabels"] == labels
    for policy in manifests_of_kind(overlay, "NetworkPolicy"):
        assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert any(each["spec"]["selector"] == labels for each in manifests_of_kind(overlay, "Service"))


def test_the_network_policy_admits_clients_and_prometheus() -> None:
    for overlay in OVERLAYS:
        spec = manifest(overlay, "NetworkPolicy")["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        ports = [{each["port"] for each in rule["ports"]} for rule in spec["ingress"]]
        assert ports == [{"http", "grpc"}, {"admin"}]
        (monitoring,) = spec["ingress"][1]["from"]
        assert "podSelector" not in monitoring  # any pod of the selected namespaces


def test_the_network_policy_permits_connections_to_backends() -> None:
    for overlay, ports in {"base": {53, 8001}, "fleet": {53, 8001}, "sidecar": {53}}.items():
        rules = manifest(overlay, "NetworkPolicy")["spec"]["egress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == ports


def test_the_sidecars_server_is_the_gateways_backend() -> None:
    spec = pod("sidecar")["spec"]
    (server,) = (each for each in spec["containers"] if each["name"] == "trtserver")
    ports = {int(each.rpartition("=")[2]) for each in server["args"] if "port=" in each}
    (backend,) = config_of("sidecar").backends.values()
    (endpoint,) = compiled.endpoints(backend)
    assert endpoint.host == "127.0.0.1"
    assert endpoint.port in ports
    assert not ports & {each["containerPort"] for each in gateway("sidecar")["ports"]}
    assert server["livenessProbe"]["httpGet"]["port"] in ports
    assert "readinessProbe" not in server
    assert "8002" in server["lifecycle"]["preStop"]["exec"]["command"][-1]
    mounts = {each["name"] for each in server["volumeMounts"]}
    assert mounts <= {each["name"] for each in spec["volumes"]}


def test_the_sidecar_reloads_a_config_map_with_a_fixed_name() -> None:
    assert manifest("sidecar", "ConfigMap")["metadata"]["name"] == "infergate"
    assert config_of("sidecar").reload.watch
    # kustomize appends a hash of the contents to the name.
    assert manifest("fleet", "ConfigMap")["metadata"]["name"].startswith("infergate-")


def test_the_manifests_of_the_fleet_refer_to_each_other() -> None:
    labels = pod("fleet")["metadata"]["labels"]
    deployment = manifest("fleet", "Deployment")
    # If the manifest set replicas, each apply would undo the autoscaler's changes.
    assert "replicas" not in deployment["spec"]
    scaler = manifest("fleet", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["minReplicas"] >= 2
    # The autoscaler's target is a percentage of the requested CPU.
    assert gateway("fleet")["resources"]["requests"]["cpu"]
    budget = manifest("fleet", "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] < scaler["minReplicas"]
    for constraint in pod("fleet")["spec"]["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"] == labels


def test_headless_services_resolve_to_servers_and_gateways() -> None:
    services = {
        each["metadata"]["name"]: each["spec"] for each in manifests_of_kind("fleet", "Service")
    }
    (backend,) = config_of("fleet").backends.values()
    (endpoint,) = compiled.endpoints(backend)
    headless = services[endpoint.host]
    assert headless["clusterIP"] == "None"  # its name resolves to one address per pod
    assert endpoint.port in {each["port"] for each in headless["ports"]}
    allowed = manifest("fleet", "NetworkPolicy")["spec"]["egress"][-1]["to"][0]["podSelector"]
    assert allowed["matchLabels"] == headless["selector"]
    assert services["infergate-pods"]["clusterIP"] == "None"


def test_prometheus_finds_each_gateway_once() -> None:
    monitor = manifest("fleet", "ServiceMonitor")["spec"]
    (endpoint,) = monitor["endpoints"]
    selector = monitor["selector"]["matchLabels"].items()
    matching = [
        each["metadata"]["name"]
        for each in manifests_of_kind("fleet", "Service")
        if selector <= each["metadata"].get("labels", {}).items()
        and endpoint["port"] in {port["name"] for port in each["spec"]["ports"]}
    ]
    assert matching == ["infergate-pods"]
    # The alert rules use this job name.
    assert pod("fleet")["metadata"]["labels"][monitor["jobLabel"]] == "infergate"


# ---- docker, compose, systemd --------------------------------------------------------------------

DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")


def instructions(name: str) -> Iterator[str]:
    for line in DOCKERFILE.replace("\\\n", " ").splitlines():
        if line.startswith(f"{name} "):
            yield " ".join(line.split()[1:])


def test_the_image_copies_only_included_files() -> None:
    copies = [copy.split()[:-1] for copy in instructions("COPY") if "--from=" not in copy]
    copied = {source for sources in copies for source in sources}
    ignored = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored  # ignores all files except those on lines with '!'
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((PROJECT / each).exists() for each in copied)


def test_the_image_serves_on_the_ports_it_exposes() -> None:
    addresses = compiled.addresses(load(DEPLOY / "docker" / "image.yaml", {}))
    (exposed,) = instructions("EXPOSE")
    assert {int(each) for each in exposed.split()} == {each.port for each in addresses.values()}
    admin = addresses.pop("admin")
    assert f"http://{admin}/healthz" in DOCKERFILE
    assert {each.host for each in addresses.values()} == {"0.0.0.0"}


COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_mounts_existing_files() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            if volume.startswith("."):
                assert (DEPLOY / "docker" / volume.partition(":")[0]).is_file(), volume
            assert volume.endswith(":ro")


def test_compose_sets_the_required_environment() -> None:
    service = COMPOSE["services"]["infergate"]
    config = load(DEPLOY / "docker" / "routes.yaml", service["environment"])
    addresses = compiled.addresses(config)
    published = [each.rsplit(":", 2) for each in service["ports"]]
    assert {int(each[-1]) for each in published} == {each.port for each in addresses.values()}
    assert [each[0] for each in published if each[-1] == "8002"] == ["127.0.0.1"]
    grace = parse_duration(service["stop_grace_period"])
    assert grace >= config.drain.delay + config.drain.timeout + STOP_SECONDS
    (endpoint,) = compiled.endpoints(config.backends["triton"])
    assert endpoint.host in COMPOSE["services"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert int(service["mem_limit"].removesuffix("m")) * 2**20 >= max_memory(config)


def test_compose_scrapes_the_gateway_with_the_job_name_of_the_alerts() -> None:
    prometheus = yaml.safe_load((DEPLOY / "docker" / "prometheus.yaml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "infergate"  # the alert rules use this job name
    assert job["static_configs"] == [{"targets": ["infergate:8002"]}]


UNIT = (DEPLOY / "systemd" / "infergate.service").read_text(encoding="utf-8")


def test_systemd_waits_for_the_drain() -> None:
    lines = [line for line in UNIT.splitlines() if "=" in line and line[0] not in "#["]
    settings = dict(line.split("=", 1) for line in lines)
    config = Config.default()
    drain = type(config.drain)()
    assert int(settings["TimeoutStopSec"]) >= drain.delay + drain.timeout + STOP_SECONDS
    assert int(settings["LimitNOFILE"]) * 3 / 4 > compiled.limits(config).connections
    assert settings["RestartPreventExitStatus"] == "2"  # the exit code of a wrong configuration
