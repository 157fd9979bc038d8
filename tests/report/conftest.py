from __future__ import annotations

from pathlib import Path

import pytest

from normscale.experiments.run_folder import RunFolder
from report.small_run import make_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of three networks; read only."""
    return make_run(Path(tmp_path_factory.mktemp("runs")) / "finished", missing={"lsun": "no mirror answered"})
