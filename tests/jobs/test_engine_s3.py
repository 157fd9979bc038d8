"""Files in an object store: a local S3 server."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import normscale as ns
from jobs.parts import bytes_of, logits_of, write_folder
from normscale import jobs
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.running import Engine
from normscale.rows import find_files

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("moto") is None, reason="moto is not installed, so there is no S3 server to work with"
    ),
    pytest.mark.filterwarnings("ignore:.*matched by name:normscale.NumericalWarning"),
    pytest.mark.filterwarnings("ignore:.*no more than chance:normscale.NumericalWarning"),  # labels that mean nothing
]


@pytest.fixture(scope="module")
def bucket(numpy_kernels: None) -> Iterator[tuple[pyarrow.fs.S3FileSystem, str]]:
    """A file system, and the options that a path to it ends with."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        keys: dict[str, Any] = {"access_key": "any", "secret_key": "any"}
        system = pyarrow.fs.S3FileSystem(
            **keys, endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
        )
        system.create_dir("bucket")
        yield system, f"?endpoint_override=127.0.0.1:{port}&scheme=http"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module")
def stored(
    bucket: tuple[pyarrow.fs.S3FileSystem, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, str]:
    """A folder here, the same in the bucket, and the options of paths."""
    system, options = bucket
    folder = tmp_path_factory.mktemp("s3") / "in"
    write_folder(folder)
    for file in sorted(folder.iterdir()):
        with system.open_output_stream(f"bucket/in/{file.name}") as stream:
            stream.write(file.read_bytes())
    with system.open_output_stream("bucket/in/_SUCCESS") as stream:
        stream.write(b"")
    return folder, "s3://bucket/in", options


def test_files_folders_and_globs(stored: tuple[Path, str, str]) -> None:
    _, there, options = stored
    names = [f"{there}/{number}.parquet{options}" for number in range(4)]
    assert [file.path for file in find_files(there + options)] == names
    assert [file.path for file in find_files(f"{there}/*.parquet{options}")] == names
    assert [file.path for file in find_files(f"{there}/[13].parquet{options}")] == [names[1], names[3]]
    assert [file.path for file in find_files(names[2])] == [names[2]]
    with pytest.raises(ns.FileFormatError, match="holds no table"):
        find_files(f"s3://bucket/nothing{options}")


def test_the_same_bytes_as_from_here(
    stored: tuple[Path, str, str], bucket: tuple[pyarrow.fs.S3FileSystem, str], tmp_path: Path, engine: Any
) -> None:
    folder, there, options = stored
    system, _ = bucket
    out = f"s3://bucket/out-{type(engine).__name__}{options}"
    detector = jobs.fit(there + options, "norm_scaling", engine=engine, piece_rows=200).detector
    assert detector._pack() == jobs.fit(folder, "norm_scaling", engine=engine, piece_rows=200).detector._pack()
    result = jobs.score(there + options, detector, out, stream=True, engine=engine, piece_rows=200)
    jobs.score(folder, detector, tmp_path / "out", stream=True, engine=engine, piece_rows=200)
    here = {name: data for name, data in bytes_of(tmp_path / "out").items() if name != "_job/plan.json"}
    kept = JobFolder(out)
    assert kept.names() == [name for name in here if name.startswith("part-")]
    assert {name: kept.read(name) for name in here} == here
    assert kept.names("_job/moments") == []
    system.delete_file(f"bucket/out-{type(engine).__name__}/part-000002.parquet")
    again = jobs.score(there + options, detector, out, stream=True, engine=engine, piece_rows=200)
    assert again.n_done_before == (result.n_pieces or 0) - 1
    assert {name: kept.read(name) for name in here} == here
    with pytest.raises(ns.InvalidInput, match="scores of another job"):
        jobs.score(there + options, detector, out, engine=engine, piece_rows=200)
    (found,) = jobs.evaluate(there + options, {"same": there + options}, {"mine": detector}, engine=engine)
    assert found.result.auroc == 0.5


def test_a_changed_object_is_noticed(
    stored: tuple[Path, str, str], bucket: tuple[pyarrow.fs.S3FileSystem, str], local: Engine
) -> None:
    folder, _, options = stored
    system, _ = bucket
    path = f"s3://bucket/alone.parquet{options}"
    for number in (0, 3):
        with system.open_output_stream("bucket/alone.parquet") as stream:
            stream.write((folder / f"{number}.parquet").read_bytes())
        if number == 0:
            file = find_files(path)[0]
            file.check()
    with pytest.raises(ns.FileFormatError, match="has changed since this job was planned"):
        file.check()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".csv", ".csv.gz"])
def test_every_format_is_read_from_a_bucket(
    bucket: tuple[pyarrow.fs.S3FileSystem, str], tmp_path: Path, suffix: str
) -> None:
    system, options = bucket
    ns.write_table(tmp_path / f"a{suffix}", logits_of(3))
    with system.open_output_stream(f"bucket/logits{suffix}", compression=None) as stream:
        stream.write((tmp_path / f"a{suffix}").read_bytes())
    with ns.open_table(f"s3://bucket/logits{suffix}{options}", chunk_rows=7) as table:
        np.testing.assert_array_equal(table.read().logits, ns.read_table(tmp_path / f"a{suffix}").logits)


def test_other_stores_are_refused_in_words(bucket: tuple[pyarrow.fs.S3FileSystem, str], local: Engine) -> None:
    _, options = bucket
    with pytest.raises(ns.InvalidInput, match="keys do not belong into a path"):
        jobs.fit(f"s3://key:secret@bucket/in{options}", "msp", engine=local)
    with pytest.raises(ns.FileFormatError, match="cannot open nothing://there"):
        jobs.fit("nothing://there/at.parquet", "msp", engine=local)


def test_a_table_in_a_bucket_is_what_it_was(stored: tuple[Path, str, str], bucket: Any) -> None:
    system, _ = bucket
    folder, _, _ = stored
    assert pq.read_table("bucket/in/0.parquet", filesystem=system).equals(pq.read_table(folder / "0.parquet"))
