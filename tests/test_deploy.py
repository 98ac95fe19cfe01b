"""What deploy/ ships: image, compose file, chart, units and recipes."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from penstock import testing
from penstock.cli import execute

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "penstock"
GRACE = 25
"""The default of `penstock worker --grace`, in seconds."""
FULL = {
    "env": {"PENSTOCK_ENVIRONMENT": "staging"},
    "imagePullSecrets": [{"name": "registry"}],
    "migrate": {"contract": True},
    "api": {"ingress": {"enabled": True, "className": "nginx", "annotations": {"a/b": "c"}}},
    "workers": {
        "default": {"keda": {"enabled": True}},
        "gpu": {
            "kinds": ["embed", "render.3d"],
            "concurrency": 4,
            "processes": 2,
            "graceSeconds": 120,
            "keda": {"enabled": True, "max": 8},
            "nodeSelector": {"gpu": "true"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    },
    "networkPolicy": {"extraPorts": [9000], "fromNamespace": {"matchLabels": {"a": "b"}}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    assert found, f"{name} is not installed"
    return found


def helm(
    tmp_path: Path, values: dict[str, Any], command: str = "template"
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    name = ["jobs"] if command == "template" else []
    return subprocess.run(
        [program("helm"), command, *name, str(CHART), "--namespace", "penstock", "--values", str(file)],
        capture_output=True, text=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
    )  # fmt: skip


def rendered(tmp_path: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    made = helm(tmp_path, values)
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def pod(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["template"]["spec"]


class TestChart:
    @pytest.mark.parametrize("version", ["1.29", "1.36"])
    @pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
    def test_documents_follow_the_schemas_of_kubernetes(
        self, tmp_path: Path, values: dict[str, Any], version: str
    ) -> None:
        kinds: set[str] = set()
        for document in rendered(tmp_path, values):
            if "keda.sh" in document["apiVersion"] or "coreos.com" in document["apiVersion"]:
                continue
            kubernetes_validate.validate(document, version, strict=True)
            kinds.add(document["kind"])
        expected = {"Deployment", "Service", "Job", "PodDisruptionBudget", "NetworkPolicy"}
        assert kinds == (expected | {"Ingress"} if values else expected)

    def test_lint_finds_nothing(self, tmp_path: Path) -> None:
        made = helm(tmp_path, FULL, "lint")
        assert made.returncode == 0 and "[WARNING]" not in made.stdout, made.stdout

    @pytest.mark.parametrize(
        "values",
        [
            {"app": "no colon"},
            {"workers": {"Upper": {}}},
            {"workers": {"default": {"concurrency": 0}}},
            {"workers": {"default": {"kinds": ["it's"]}}},
            {"api": {"replica": 3}},
        ],
    )
    def test_wrong_values_are_rejected(self, tmp_path: Path, values: dict[str, Any]) -> None:
        """A kind's name goes into the query of the scaler: it cannot hold a quote."""
        made = helm(tmp_path, values)
        assert made.returncode != 0 and "values don't meet the specifications" in made.stderr

    def test_pods_outlive_the_grace_of_what_they_run(self, tmp_path: Path) -> None:
        found = of_kind(rendered(tmp_path, FULL), "Deployment")
        assert pod(found["jobs-worker-default"])["terminationGracePeriodSeconds"] == GRACE + 10
        assert pod(found["jobs-worker-gpu"])["terminationGracePeriodSeconds"] == 130
        assert pod(found["jobs-api"])["terminationGracePeriodSeconds"] == 30

    def test_pods_have_no_rights_and_no_secrets_in_the_open(self, tmp_path: Path) -> None:
        documents = rendered(tmp_path, FULL)
        assert not of_kind(documents, "Secret"), "secrets are referred to, never created"
        pods = [pod(each) for each in documents if each["kind"] in ("Deployment", "Job")]
        assert len(pods) == 4
        for each in pods:
            assert each["automountServiceAccountToken"] is False
            assert each["securityContext"]["runAsNonRoot"] and each["securityContext"]["runAsUser"] == 10001
            (container,) = each["containers"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["envFrom"][0]["secretRef"]["name"]

    def test_probes_name_paths_that_exist(self, tmp_path: Path) -> None:
        for name, document in of_kind(rendered(tmp_path, {}), "Deployment").items():
            (container,) = pod(document)["containers"]
            paths = [
                container[f"{probe}Probe"]["httpGet"]["path"]
                for probe in ("startup", "liveness", "readiness")
            ]
            assert paths == ["/healthz", "/healthz", "/readyz"], name
            if "worker" in name:
                assert container["args"][container["args"].index("--health") + 1] == "8081"

    def test_migrations_run_before_the_pods(self, tmp_path: Path) -> None:
        (job,) = of_kind(rendered(tmp_path, FULL), "Job").values()
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        (container,) = pod(job)["containers"]
        assert container["args"] == ["migrate", "mysite.jobs:app", "--contract"]
        assert container["envFrom"] == [{"secretRef": {"name": "penstock-owner"}}]

    @pytest.mark.parametrize("kind", ["Deployment", "Job"])
    def test_arguments_are_options_of_the_command(
        self, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for document in of_kind(rendered(tmp_path, FULL), kind).values():
            (container,) = pod(document)["containers"]
            given = [each for each in container["args"] if each not in ("-o", "jsonl")]
            assert execute([given[0], "--help"]) == 0
            help_text = capsys.readouterr().out
            for option in given[1:]:
                assert not option.startswith("--") or option in help_text


class TestKeda:
    def triggers(self, tmp_path: Path) -> dict[str, dict[str, Any]]:
        documents = rendered(tmp_path, FULL)
        (login,) = of_kind(documents, "TriggerAuthentication").values()
        assert login["spec"]["secretTargetRef"] == [
            {"parameter": "connection", "name": "penstock-scaler", "key": "connection"}
        ]
        found: dict[str, dict[str, Any]] = {}
        for name, document in of_kind(documents, "ScaledObject").items():
            spec = document["spec"]
            assert spec["scaleTargetRef"]["name"] == name
            assert "replicas" not in of_kind(documents, "Deployment")[name]["spec"], "KEDA sets them"
            (trigger,) = spec["triggers"]
            assert (trigger["type"], trigger["metricType"]) == ("postgresql", "AverageValue")
            assert trigger["authenticationRef"]["name"] == login["metadata"]["name"]
            found[name] = {**trigger["metadata"], "max": spec["maxReplicaCount"]}
        return found

    def test_scales_on_wanted_slots_with_a_login_that_may_do_nothing_else(
        self, tmp_path: Path, db: testing.Database
    ) -> None:
        """B11/keda: the query of the ScaledObject gives the slots that are wanted under the limits."""
        found = self.triggers(tmp_path)
        assert {name: each["targetQueryValue"] for name, each in found.items()} == {
            "jobs-worker-default": "20", "jobs-worker-gpu": "8",
        }  # fmt: skip
        role = f"scaler_{db.name}"
        db.execute(f"create role {role} login")
        try:
            db.execute(f"grant usage on schema penstock to {role}")
            db.execute(f"grant execute on function penstock.wanted_slots() to {role}")
            tenant = db.execute("select penstock.create_tenant('t') as id")[0]["id"]
            for kind in ("embed", "other"):
                db.execute("select penstock.define_kind(%s)", [kind])
            db.execute("select penstock.set_provider('p/m', '{\"concurrency\": 3}')")
            tasks = [{"kind": "embed", "provider": "p/m"}] * 10 + [{"kind": "other"}] * 4
            db.execute(
                "select penstock.start_job('j', '{}', %s::jsonb, jsonb_build_object('tenant_id', %s::uuid))",
                [json.dumps(tasks), tenant],
            )
            with psycopg.connect(make_conninfo(db.dsn, user=role), autocommit=True) as scaler:

                def value(name: str) -> float:
                    row = scaler.execute(found[name]["query"]).fetchone()
                    assert row is not None
                    return row[0]

                assert (value("jobs-worker-default"), value("jobs-worker-gpu")) == (7.0, 3.0)
                db.execute("select penstock.set_provider('p/m', '{\"status\": \"maintenance\"}')")
                assert (value("jobs-worker-default"), value("jobs-worker-gpu")) == (4.0, 0.0)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    scaler.execute("select * from penstock.jobs")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    scaler.execute("select penstock.claim_tasks('w')")
        finally:
            db.execute(f"drop owned by {role}")
            db.execute(f"drop role {role}")


class TestImage:
    dockerfile = (ROOT / "Dockerfile").read_text()

    def test_hadolint_finds_nothing(self) -> None:
        made = subprocess.run([program("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True)
        assert made.returncode == 0, made.stdout

    def test_result_has_the_same_base_no_tools_and_a_numeric_user(self) -> None:
        stages = re.split(r"(?m)^FROM ", self.dockerfile)[1:]
        assert [stage.split()[0] for stage in stages] == ["${BASE}", "${BASE}"]
        last = stages[-1]
        assert "RUN" not in last, "nothing is installed in the result"
        assert re.search(r"(?m)^USER [0-9]+:[0-9]+$", last)
        assert re.search(r'(?m)^ENTRYPOINT \["penstock"\]$', last), "exec form: signals reach the process"
        assert "requirements.lock" in stages[0] and "STOPSIGNAL SIGTERM" in last

    def test_extras_and_version_exist(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = re.search(r"ARG EXTRAS=(\S+)", self.dockerfile)
        assert extras and set(extras[1].split(",")) <= set(project["optional-dependencies"])
        assert "embedded" not in extras[1], "production needs no embedded server"
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        assert chart["appVersion"] == project["version"]

    def test_copied_files_are_in_the_context(self) -> None:
        allowed = [
            line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
        ]
        copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", self.dockerfile)
        for name in " ".join(copied).split():
            assert (ROOT / name).exists() and name.split("/")[0] in allowed, name


class TestCompose:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

    def test_every_variable_has_an_example(self) -> None:
        text = (ROOT / "docker-compose.yml").read_text()
        example = (ROOT / "deploy" / "compose" / "env.example").read_text()
        given = set(re.findall(r"(?m)^([A-Z_]+)=", example))
        asked = set(re.findall(r"\$\{([A-Z_]+)", text))
        assert asked - {"PENSTOCK_VERSION"} == given

    def test_services_depend_on_services_and_images_are_pinned(self) -> None:
        services = self.compose["services"]
        assert set(services) == {"db", "store", "bucket", "migrate", "api", "worker", "proxy"}
        for name, service in services.items():
            assert set(service.get("depends_on", {})) <= set(services), name
            image = service["image"]
            assert image.startswith("penstock:") or re.search(r":[0-9]", image), image
        assert services["worker"]["deploy"]["replicas"] == 2
        for name in ("api", "worker"):
            assert int(services[name]["stop_grace_period"].rstrip("s")) > GRACE
            assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]

    def test_commands_are_understood(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("api", "worker", "migrate"):
            given = [
                each for each in self.compose["services"][name]["command"] if each not in ("-o", "jsonl")
            ]
            assert execute([given[0], "--help"]) == 0
            help_text = capsys.readouterr().out
            assert all(each in help_text for each in given if each.startswith("--"))

    def test_only_the_proxy_and_the_store_are_reachable(self) -> None:
        open_ports = {
            name: each["ports"] for name, each in self.compose["services"].items() if "ports" in each
        }
        assert open_ports == {"store": ["127.0.0.1:8333:8333"], "proxy": ["8443:8443"]}


class TestRecipes:
    def test_systemd_units_leave_time_to_drain(self) -> None:
        for name in ("penstock-worker@", "penstock-api"):
            unit = configparser.ConfigParser(strict=False, interpolation=None)
            unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
            unit.read(ROOT / "deploy" / "systemd" / f"{name}.service")
            service = unit["Service"]
            assert int(service["TimeoutStopSec"]) > (GRACE if "worker" in name else 22)
            assert service["NoNewPrivileges"] == "yes" and service["User"] == "penstock"
        assert unit["Install"]["WantedBy"] == "multi-user.target"

    def test_systemd_accepts_the_units(self, tmp_path: Path) -> None:
        verify = shutil.which("systemd-analyze")
        if verify is None:
            pytest.skip("systemd-analyze is not installed")
        for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
            text = re.sub(r"(?m)^(ExecStart=)\S+", r"\1/bin/true", unit.read_text())
            (tmp_path / unit.name).write_text(text.replace("User=penstock", "User=root"))
        made = subprocess.run(
            [verify, "verify", "--man=no", *map(str, tmp_path.glob("*.service"))],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr

    def test_platforms_get_sigterm_and_time_to_drain(self) -> None:
        fly = tomllib.loads((ROOT / "deploy" / "fly" / "fly.toml").read_text())
        assert fly["kill_signal"] == "SIGTERM" and fly["kill_timeout"] > GRACE
        assert fly["deploy"]["release_command"] == "migrate", "the image's entry point is penstock"
        render = yaml.safe_load((ROOT / "deploy" / "render" / "render.yaml").read_text())
        for service in render["services"]:
            assert service["maxShutdownDelaySeconds"] > GRACE


class TestMonitoring:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text())

    def names(self) -> set[str]:
        """The metrics that rules and dashboard read, without those that a rule records."""
        rules = [rule for group in self.rules["groups"] for rule in group["rules"]]
        expressions = [rule["expr"] for rule in rules]
        expressions += [t["expr"] for panel in self.dashboard["panels"] for t in panel["targets"]]
        recorded = {rule["record"] for rule in rules if "record" in rule}
        return set(re.findall(r"penstock[_:][a-z0-9_]+", " ".join(expressions))) - recorded

    def test_rules_and_dashboard_read_metrics_that_exist(self, db: testing.Database) -> None:
        import asyncio

        from prometheus_client import CollectorRegistry, generate_latest

        from penstock.api import observe
        from penstock.contract import overview
        from penstock.postgres import db as database

        async def figures() -> list[tuple[str, str, float]]:
            async with database.pool(db.dsn, name="test", max_size=1) as pool:
                return await overview.metric_figures(pool)

        registry = CollectorRegistry()
        observe._add_figures(registry, asyncio.run(figures()))
        exposed = set(re.findall(r"(?m)^# TYPE (\S+)", generate_latest(registry).decode()))
        source = (ROOT / "penstock" / "api" / "observe.py").read_text()
        exposed |= set(re.findall(r'"(penstock_[a-z_]+)"', source))
        exposed |= {"penstock_http_requests_total", "penstock_http_request_seconds_bucket"}
        assert self.names() - exposed == set()

    def test_promtool_accepts_and_tries_the_rules(self) -> None:
        """Alerts fire and stay silent as the test file says, in Prometheus' own evaluation."""
        tool = shutil.which("promtool")
        if tool is None:
            pytest.skip("promtool is not installed: make system-packages")
        folder = ROOT / "deploy" / "prometheus"
        for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
            made = subprocess.run([tool, *command], cwd=folder, capture_output=True, text=True)
            assert made.returncode == 0, made.stdout + made.stderr

    def test_panels_fill_the_grid_without_overlap(self) -> None:
        taken: set[tuple[int, int]] = set()
        assert len({panel["id"] for panel in self.dashboard["panels"]}) == len(self.dashboard["panels"])
        for panel in self.dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
            taken |= cells
