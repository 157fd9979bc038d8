"""Pictures to scores on a Ray cluster: a model on actors, a GPU each where there is one, and the same detectors.

Ray Data streams the pictures through the actors; which rows are in which output file, and their order, is its choice,
so every row carries the path of its picture, or the columns that were asked for. Files are listed and read here: Ray
Data's own listing (2.60) waits for ever now and then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._validate import at_least
from normscale.detectors.base import Detector
from normscale.encoding.picture_files import PICTURE_SUFFIXES
from normscale.engines.locations import file_system, find_files, is_remote
from normscale.engines.pieces import open_parquet
from normscale.engines.ray_engine import RayEngine
from normscale.engines.spreading import EngineFailed, one_thread
from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.outputs import LOGITS, ModelOutputs

_FILES_AT_ONCE = 64

Prepare = Callable[[NDArray[np.uint8]], NDArray[Any]]
"""From pictures (n, height, width, 3) of bytes to what the model takes."""


class PictureJob(NamedTuple):
    """What an actor needs."""

    model: str | Callable[[], Any]
    detector: Detector
    size: tuple[int, int]
    column: str
    keep: tuple[str, ...]
    prepare: Prepare | None


def score_pictures(
    source: str | os.PathLike[str],
    model: str | os.PathLike[str] | Callable[[], Any],
    detector: Detector,
    output: str | os.PathLike[str],
    *,
    size: tuple[int, int],
    column: str = "image",
    keep: Sequence[str] = (),
    prepare: Prepare | None = None,
    batch_size: int = 64,
    actors: int = 1,
    gpus_per_actor: float | None = None,
    address: str | None = None,
) -> int:
    """Run a model over pictures and score what it gives; the scores go to a folder of Parquet files.

    Parameters
    ----------
    source : path
        A folder of pictures, or a .parquet file, folder or glob with a column of encoded pictures (PNG, JPEG, ...).
    model : path, or a function without arguments
        An ONNX file whose outputs are called as the arrays that the detector reads (``logits``, ``features``; a single
        output is the logits), or a function that makes a torch model, which gives logits. Every actor loads its own.
    detector : Detector
        A fitted one. It scores frozen: the order of pictures is not defined.
    output : path
        A folder that is not there yet: ``path`` of the picture or the columns ``keep``, ``score``, ``predicted`` and,
        where the detector has a threshold, ``is_ood``.
    size : (height, width)
        What pictures are resized to.
    column, keep : str, sequence of str
        Of a Parquet source: which column holds the pictures, and which are written beside the scores.
    prepare : callable, optional
        From bytes (n, height, width, 3) to the model's input; by default (n, 3, height, width) float32 in [0, 1].
    batch_size, actors : int
        Pictures in a batch, and how many actors.
    gpus_per_actor : float, optional
        By default one where the cluster has GPUs, else none.
    address : str, optional
        Of a Ray cluster; by default the one that is connected, or one started here.

    Returns
    -------
    int
        How many pictures were scored.
    """
    detector._require_fitted()
    at_least(batch_size, "batch_size", 1)
    at_least(actors, "actors", 1)
    target = os.fspath(output)
    if os.path.exists(target):
        raise InvalidInput(f"{target} is there already; scores of pictures go to a new folder.")
    engine = RayEngine(address)
    try:
        data = _data()
        from_files = not _is_parquet(os.fspath(source))
        job = PictureJob(
            os.fspath(model) if isinstance(model, (str, os.PathLike)) else model,
            detector,
            (at_least(size[0], "size", 1), at_least(size[1], "size", 1)),
            column,
            ("path",) if from_files else tuple(keep),
            prepare,
        )
        pictures = _pictures(data, os.fspath(source), job, from_files)
        gpus = gpus_per_actor
        if gpus is None:
            gpus = 1.0 if engine.has_gpus else 0.0
        scored = pictures.map_batches(
            PictureScorer,
            fn_constructor_kwargs={"job": job},
            batch_size=batch_size,
            batch_format="numpy",
            concurrency=actors,
            num_gpus=gpus or None,
        )
        try:
            scored.write_parquet(target)
        except engine.task_error as error:
            raise _cause(error) from error
        return _rows_written(target)
    finally:
        engine.close()


class PictureScorer:
    """An actor: a model, and the detector that scores its outputs."""

    def __init__(self, job: PictureJob) -> None:
        """Load the model."""
        one_thread()
        self._job = job
        self._run = _onnx_runner(job) if isinstance(job.model, str) else _torch_runner(job)

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Score a batch of pictures."""
        job = self._job
        images = batch[job.column]
        if images.dtype == object and isinstance(images[0], bytes):
            images = np.stack([decode(data, job.size) for data in images])
        elif images.dtype == object:
            images = np.stack(list(images))
        outputs = ModelOutputs(**self._run((job.prepare or to_unit_floats)(images)))
        scores = job.detector.score(outputs)
        found = {name: batch[name] for name in job.keep}
        found["score"] = scores
        predicted = outputs.predicted if outputs.get(LOGITS) is not None else None
        if predicted is not None:
            found["predicted"] = predicted
        if job.detector.threshold_ is not None:
            found["is_ood"] = job.detector.threshold_.flags(scores, predicted)
        return found


def decode(data: bytes, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A picture in three colours, resized; shape (height, width, 3)."""
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB").resize((size[1], size[0]), Image.Resampling.BILINEAR))
    except (UnidentifiedImageError, OSError) as error:
        raise FileFormatError(f"a picture of {len(data)} bytes cannot be read: {error}.") from error


def to_unit_floats(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """From bytes (n, height, width, 3) to (n, 3, height, width) in [0, 1].

    Examples
    --------
    >>> to_unit_floats(np.full((1, 2, 4, 3), 255, np.uint8)).shape
    (1, 3, 2, 4)
    """
    turned = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    turned /= np.float32(255.0)
    return turned


def _onnx_runner(job: PictureJob) -> Callable[[NDArray[Any]], dict[str, NDArray[Any]]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"an ONNX model needs onnxruntime ({error}). Run: pip install 'normscale[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(job.model, options, providers=onnxruntime.get_available_providers())
    entry = session.get_inputs()[0].name
    names = [item.name for item in session.get_outputs()]
    wanted = [name for name in names if name in (*job.detector.reads, LOGITS)]
    if not wanted and len(names) == 1:
        return lambda images: {LOGITS: session.run(None, {entry: images})[0]}
    if lacking := [name for name in job.detector.reads if name not in wanted]:
        raise InvalidInput(
            f"{job.detector.name} reads {lacking[0]}, and the outputs of {job.model} are {', '.join(names)}. Name the "
            "outputs of the model as the arrays that the detector reads."
        )
    return lambda images: dict(zip(wanted, session.run(wanted, {entry: images}), strict=True))


def _torch_runner(job: PictureJob) -> Callable[[NDArray[Any]], dict[str, NDArray[Any]]]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert callable(job.model)
    network = job.model().eval().to(device)

    def run(images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            found = network(torch.from_numpy(np.ascontiguousarray(images)).to(device))
        arrays = found if isinstance(found, Mapping) else {LOGITS: found}
        return {name: tensor.float().cpu().numpy() for name, tensor in arrays.items()}

    return run


def _pictures(data: Any, source: str, job: PictureJob, from_files: bool) -> Any:
    """The pictures as a data set with the column ``job.column``, encoded."""
    if from_files:
        paths = [{"path": file.path} for file in find_files(source, PICTURE_SUFFIXES)]
        return data.from_items(paths).map_batches(_read_files, fn_args=(job.column,), batch_size=_FILES_AT_ONCE)
    columns = [job.column, *job.keep]
    groups = [
        {"path": file.path, "row_group": number}
        for file in find_files(source)
        for number in range(_row_groups(file.path, columns))
    ]
    return data.from_items(groups).map_batches(_read_row_group, fn_args=(columns,), batch_size=1)


def _read_files(batch: dict[str, NDArray[Any]], column: str) -> dict[str, NDArray[Any]]:
    contents = np.empty(len(batch["path"]), dtype=object)
    contents[:] = [_read_bytes(path) for path in batch["path"]]
    return {**batch, column: contents}


def _read_bytes(path: str) -> bytes:
    if not is_remote(path):
        return Path(path).read_bytes()
    system, inside = file_system(path)
    with system.open_input_stream(inside) as stream:
        return bytes(stream.read())


def _read_row_group(batch: dict[str, NDArray[Any]], columns: list[str]) -> Any:
    (path,), (number,) = batch["path"], batch["row_group"]
    with open_parquet(path) as file:
        return file.read_row_group(int(number), columns=columns, use_threads=False)


def _row_groups(path: str, columns: list[str]) -> int:
    """How many row groups a file has; raises where a column is missing."""
    with open_parquet(path) as file:
        for name in columns:
            if name not in file.schema_arrow.names:
                raise FileFormatError(
                    f"{path} has no column {name!r}; its columns: {', '.join(file.schema_arrow.names)}."
                )
        return int(file.num_row_groups)


def _rows_written(folder: str) -> int:
    total = 0
    for file in find_files(folder):
        with open_parquet(file.path) as table:
            total += table.metadata.num_rows
    return total


def _is_parquet(source: str) -> bool:
    """Whether pictures are in a column; in a folder, whatever the first file is."""
    if os.path.isdir(source):
        return any(name.endswith(".parquet") for name in sorted(os.listdir(source))[:1])
    return source.endswith(".parquet")


def _data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise MissingExtra(f"pictures need Ray Data ({error}). Run: pip install 'normscale[ray]'") from error
    return ray.data


def _cause(error: Any) -> Exception:
    """The error of ours inside Ray's, or a sentence."""
    cause: Any = error
    while cause is not None and not isinstance(cause, (InvalidInput, FileFormatError, MissingExtra)):
        cause = getattr(cause, "cause", None) or cause.__cause__
    return cause if cause is not None else EngineFailed(f"Ray gave up: {error}")
