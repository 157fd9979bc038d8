"""Guards to serve, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import normscale as ns
from guard.server.running import Server

Start = Callable[..., Server]


@pytest.fixture(scope="session")
def sample_guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Norm-scaling on the sample, with a threshold."""
    sample = ns.load_sample()
    path = tmp_path_factory.mktemp("guards") / "norm_scaling.safetensors"
    ns.NormScaling().fit(sample.train).set_threshold(sample.validation).save(path)
    return path


@pytest.fixture(scope="session")
def robust_guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guard whose statistics depend on the order of the rows."""
    sample = ns.load_sample()
    path = tmp_path_factory.mktemp("guards") / "robust.safetensors"
    ns.RobustNormScaling().fit(sample.train).set_threshold(sample.validation).save(path)
    return path


@pytest.fixture
def start_server(sample_guard: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts servers that end with the test; their store is a file unless an option says otherwise."""
    servers: list[Server] = []

    def start(*options: str, guard: str | Path = sample_guard, store: str | None = None, **settings: object) -> Server:
        where = str(tmp_path / "store.sqlite") if store is None else store
        log = tmp_path / f"server{len(servers)}.log"
        servers.append(Server(guard, log, "--store", where, *options, **settings))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
