"""A real Prometheus scrapes a guard, and an alert of deploy/ fires; the dashboard asks for metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guard.server.kills import SAMPLE
from guard.server.running import Client, Server

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "alerts.yml"
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no Prometheus on this machine (apt-get install prometheus)",
)


class Prometheus:
    """Scrapes one server four times a second, and looks at the alerts as often."""

    def __init__(self, folder: Path, target: str, token: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms", "scrape_timeout": "250ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": "normscale",
                    "static_configs": [{"targets": [target]}],
                    "authorization": {"credentials": token},
                    "scrape_timeout": "250ms",
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        checked = ["promtool", "check", "config", str(folder / "prometheus.yml")]
        subprocess.run(checked, check=True, capture_output=True, timeout=120)
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command.append(f"--web.listen-address=127.0.0.1:{self.port}")
        self.log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def ask(self, path: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=5) as response:
                return json.load(response)["data"]
        except OSError:
            return {"alerts": [], "result": []}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="module")
def scraped(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Prometheus]]:
    folder, secret = tmp_path_factory.mktemp("scraped"), "nsk_" + "p" * 43
    options = ("--store", str(folder / "store.sqlite"))
    with Server(sample_guard, folder / "log", *options, environment={"NORMSCALE_TOKEN": secret}) as server:
        prometheus = Prometheus(folder, f"127.0.0.1:{server.port}", secret)
        try:
            yield server.client(secret), prometheus
        finally:
            prometheus.stop()


def eventually(true: Any, seconds: float = 40.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def test_an_alert_fires_when_the_guard_freezes_and_ends_when_it_thaws(scraped: tuple[Client, Prometheus]) -> None:
    client, prometheus = scraped

    def firing() -> set[str]:
        alerts = prometheus.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    rows = SAMPLE.test.logits.astype(np.float64)
    assert client.score(rows[:50]).status == 200
    query = "sum by (guard) (normscale_rows_total)"
    assert eventually(lambda: [one["value"][1] for one in prometheus.ask("query", query=query)["result"]] == ["50"])
    assert firing() == set()
    ones = rows[rows.argmax(axis=1) == 1]
    for number in range(10):
        verdict = client.score(ones[np.random.default_rng(number).integers(0, len(ones), 100)]).answer
    assert (verdict["mode"], "class_balance" in verdict["alarms"]) == ("frozen", True)
    assert eventually(lambda: firing() >= {"GuardFrozen", "GuardDrift"}), firing()
    assert client.ask("POST", "/v1/thaw", {}).status == 200
    assert eventually(lambda: "GuardFrozen" not in firing())


def test_what_the_dashboard_and_the_alerts_ask_for_is_there(scraped: tuple[Client, Prometheus]) -> None:
    client, prometheus = scraped
    assert client.score(SAMPLE.ood["unseen_digits"].logits[:20]).status == 200  # some of them are flagged
    assert eventually(lambda: "resultType" in prometheus.ask("query", query="up"))  # it is ready
    metrics = client.ask("GET", "/metrics").body.decode()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, text=True, capture_output=True, check=False, timeout=120
    )
    said = [line for line in (checked.stdout + checked.stderr).splitlines() if "normscale" in line]
    assert said == [], said
    known = set(re.findall(r"^(\w+)[{ ]", metrics, re.MULTILINE)) | {"up"}
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert len(asked) > 20
    for expression in asked:
        names = set(re.findall(r"\b(?:normscale|process)_\w+", expression))
        assert names <= known, names - known
        plain = re.sub(r"\$__rate_interval", "5m", expression).replace('"$guard"', '".*"').replace('"$job"', '".*"')
        found = prometheus.ask("query", query=plain)
        assert found["resultType"] in ("vector", "scalar"), expression
    titles = " ".join(panel["title"] for panel in dashboard["panels"]).lower()
    for wanted in ("flagged share", "scores", "limits", "rows a second", "time of an answer", "state"):
        assert wanted in titles, wanted
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert all(x + w <= 24 for x, _, w, _ in places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)


def test_the_rules_are_ones_that_prometheus_takes() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True, timeout=120)
