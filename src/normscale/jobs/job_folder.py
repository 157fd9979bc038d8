"""The folder that a job writes to, here or in an object store: its plan, its finished pieces, its lock.

::

    scores/part-000000.parquet ...   one file a piece, there when it is whole
    scores/_job/plan.json            which job this is; another one is refused
    scores/_job/...                  what the job remembers between two passes
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from normscale._atomic import atomic_path
from normscale._lock import locked
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.rows import file_system, is_remote, need_arrow

JOB = "_job"
STATES = f"{JOB}/states"
"""What the first pass of a stream keeps for the second."""
_PLAN = f"{JOB}/plan.json"
_TEMPORARY = re.compile(r"\..*\.tmp(\.[a-z]+)?")


class JobFolder:
    """Files by name in a folder; every file appears whole or not at all.

    On this machine a file is moved into place; object stores put a file whole by themselves.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        self.path = given if is_remote(given) else os.path.abspath(given)  # workers run in folders of their own
        self._location, mark, options = self.path.partition("?") if is_remote(self.path) else (self.path, "", "")
        self._options = mark + options
        if not is_remote(self.path) and os.path.exists(self.path) and not os.path.isdir(self.path):
            raise InvalidInput(f"the output of many pieces is a folder; {self.path} is a file. Choose another name.")

    def at(self, name: str) -> str:
        """The path of a file."""
        return f"{self._location.rstrip('/')}/{name}{self._options}"

    def names(self, below: str = "") -> list[str]:
        """Files in the folder, or in one inside it, in the order of their names; not those of deeper folders."""
        if not is_remote(self.path):
            folder = os.path.join(self.path, below)
            with suppress(FileNotFoundError):
                return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
            return []
        fs = need_arrow("pyarrow.fs", self.path)
        system, inside = file_system(self.at(below).replace(f"/{self._options}", self._options))
        found = system.get_file_info(fs.FileSelector(inside.rstrip("/"), allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.type == fs.FileType.File)

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where there is none."""
        try:
            if not is_remote(self.path):
                with open(self.at(name), "rb") as file:
                    return file.read()
            system, inside = file_system(self.at(name))
            with system.open_input_stream(inside) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Put a file into its place, whole."""
        if is_remote(self.path):
            system, inside = file_system(self.at(name))
            with system.open_output_stream(inside) as stream:
                stream.write(data)
            return
        path = self.at(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            file.write(data)

    def remove_folder(self, name: str) -> None:
        """Remove a folder inside with all that is in it."""
        if not is_remote(self.path):
            shutil.rmtree(self.at(name), ignore_errors=True)
            return
        system, inside = file_system(self.at(name))
        with suppress(FileNotFoundError):
            system.delete_dir(inside)

    @contextmanager
    def working(self, plan: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder for a job while the body runs, and leave no temporary file behind.

        Raises where another process is at work there, or where the folder holds what another job wrote. An object
        store has no lock: two processes with the same plan would write the same bytes twice.
        """
        if is_remote(self.path):
            self._claim(plan)
            yield
            return
        with locked(os.path.join(self.path, JOB), wait=False):
            self._sweep()
            self._claim(plan)
            try:
                yield
            finally:
                self._sweep()

    def _claim(self, plan: Mapping[str, Any]) -> None:
        known = self.read(_PLAN)
        if known is None:
            strangers = [name for name in self.names() if not name.startswith(".")]
            if strangers:
                raise InvalidInput(
                    f"{self.path} holds files that this job did not write, such as {strangers[0]}. Choose an empty "
                    "folder or another name."
                )
            self.write(_PLAN, write_json(plan).encode())
            return
        try:
            other = read_json(known)
        except ValueError as error:
            raise FileFormatError(f"{self.at(_PLAN)} is damaged: {error}. Choose another folder.") from error
        different = [key for key in plan if not isinstance(other, dict) or other.get(key) != plan[key]]
        if different:
            raise InvalidInput(
                f"{self.path} holds the scores of another job: {_difference(different[0], plan, other)}. "
                "Choose another folder, or remove this one to have its scores made again."
            )

    def _sweep(self) -> None:
        """Remove what killed processes left half written."""
        for folder, _, names in os.walk(self.path):
            for name in filter(_TEMPORARY.fullmatch, names):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))


def _difference(key: str, plan: Mapping[str, Any], other: Any) -> str:
    theirs = other.get(key) if isinstance(other, dict) else None
    if key == "pieces":
        return "the files were cut into other pieces (--piece-rows)"
    if key != "files" or not isinstance(theirs, list):
        was, now = (text if len(text) <= 40 else text[:37] + "..." for text in (str(theirs), str(plan[key])))
        return f"its {key.replace('_', ' ')} was {was}, and now it is {now}"
    known, ours = ({entry[0]: list(entry) for entry in files} for files in (theirs, plan[key]))
    changed = [f"{path} has changed since" for path in ours if path in known and ours[path] != known[path]]
    added = [f"it did not read {path}" for path in ours if path not in known]
    gone = [f"it read {path} as well" for path in known if path not in ours]
    return next(iter([*changed, *added, *gone]), "its files stood in another order")
