"""Two processes on this machine and a Ray cluster with two workers, each started once."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from normscale import _kernels
from normscale._kernels import reference
from normscale.jobs.running import Engine, open_engine

HAS_RAY = importlib.util.find_spec("ray") is not None
WHY_SKIPPED = "Ray is not installed (pip install 'normscale[ray]'), so nothing is run on a cluster"


ENVIRONMENT = {
    "NORMSCALE_KERNELS": "numpy",  # numba takes most of the time that a new process needs to be ready
    "AWS_ACCESS_KEY_ID": "any",  # of the S3 server that tests start
    "AWS_SECRET_ACCESS_KEY": "any",
}


@pytest.fixture(scope="module", autouse=True)
def numpy_kernels() -> Iterator[None]:
    """This process and the workers that it starts do without numba while a file of these tests runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(_kernels, "_kernels", reference)
        yield


@pytest.fixture(scope="session")
def local() -> Iterator[Engine]:
    with open_engine("local", workers=2) as engine:  # its processes are started when the first task comes
        yield engine


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    if not HAS_RAY:
        pytest.skip(WHY_SKIPPED)
    more = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}  # a busy machine takes its time
    more["RAY_worker_niceness"] = "0"  # by default 15: beside other tests the workers would hardly run
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own
        for name, value in (ENVIRONMENT | more).items():
            patch.setenv(name, value)
        import ray

        for attempt in range(3):  # on a machine that is very busy Ray gives its own daemons too little time
            try:
                ray.init(
                    num_cpus=2,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=200 << 20,
                )
                break
            except Exception:
                ray.shutdown()
                if attempt == 2:
                    raise
    yield ray
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()


@pytest.fixture(scope="session")
def ray_engine(ray_cluster: Any) -> Iterator[Engine]:
    with open_engine("ray") as engine:
        assert engine.workers == 2
        yield engine


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue({"local": "local", "ray": "ray_engine"}[request.param])
    return found
