"""Shared by all tests: both kernel back ends, and hypothesis without a deadline (machines are shared and noisy)."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from needed_extras import compiled_kernels, need, pytest_pycollect_makemodule
from normscale import _kernels
from normscale._kernels import reference
from sharing import pytest_xdist_make_scheduler
from tiers import pytest_collection_modifyitems, pytest_ignore_collect

# hooks: modules that need an extra are skipped without it; what is slow is marked; what shares something stays together
__all__ = ["pytest_collection_modifyitems", "pytest_ignore_collect", "pytest_pycollect_makemodule"]
__all__ += ["pytest_xdist_make_scheduler"]

# A virtual machine may announce AMX and not have it; torch's half-precision convolutions then end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ray Data asks Prometheus for its usage in a thread and logs that none is there, with a traceback. On Python 3.11 that
# makes ast.parse fail in any other thread (gh-106905).
os.environ.update(RAY_DATA_USAGE_DISABLED="1", RAY_USAGE_STATS_ENABLED="0")

settings.register_profile("normscale", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("normscale")


def pytest_unconfigure() -> None:
    """Say where it hangs, and end, if this process does not end by itself: a thread, a cluster or a pool is left."""
    faulthandler.dump_traceback_later(60, exit=True, file=2)


@pytest.fixture(params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _kernels.Backend:
    """Run the test once with each back end."""
    chosen: _kernels.Backend = compiled_kernels() if request.param == "numba" else reference
    monkeypatch.setattr(_kernels, "_kernels", chosen)
    return chosen


@pytest.fixture(scope="session")
def torchvision() -> Iterator[None]:
    """Make torchvision importable, also where it was built for another torch (one for CUDA beside one for CPUs)."""
    need("torchvision")
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    try:
        import torchvision as _  # noqa: F401
    except RuntimeError:
        library.define("nms(Tensor a) -> Tensor")  # type: ignore[no-untyped-call]
        library.define("qnms(Tensor a) -> Tensor")  # type: ignore[no-untyped-call]
    yield
    del library
