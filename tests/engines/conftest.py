"""Two processes on this machine and a Ray cluster with two workers, each started once."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from normscale import _kernels
from normscale._kernels import reference
from normscale.engines.spreading import Engine, open_engine

HAS_RAY = importlib.util.find_spec("ray") is not None
WHY_SKIPPED = "Ray is not installed (pip install 'normscale[ray]'), so nothing is run on a cluster"


@pytest.fixture(scope="session")
def numpy_kernels() -> Iterator[None]:
    """Workers without numba, which takes most of the time that a new process needs to be ready."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMSCALE_KERNELS", "numpy")
        patch.setenv("AWS_ACCESS_KEY_ID", "any")  # of the S3 server that tests start
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setattr(_kernels, "_kernels", reference)
        yield


@pytest.fixture(scope="session")
def local(numpy_kernels: None) -> Iterator[Engine]:
    with open_engine("local", workers=2) as engine:
        yield engine


@pytest.fixture(scope="session")
def ray_cluster(numpy_kernels: None) -> Iterator[Any]:
    if not HAS_RAY:
        pytest.skip(WHY_SKIPPED)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes its time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
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
