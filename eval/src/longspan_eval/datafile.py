"""Local data files of tasks, checked field by field before anything is measured. Nothing is ever fetched.

A file is JSON lines: an object a line. What is wrong with it is said with file, line and field. Small files of made
text, one for each that a task reads, ship with the package in ``SAMPLES``: they show the format, and a task can be
tried on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args, get_origin

from longspan import files
from longspan_eval.errors import DataError

Record = Mapping[str, Any]  # one line of a local data file

SAMPLES = Path(__file__).resolve().parent / "samples"

_JSON_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True)
class DataFile:
    """A file that a task reads.

    Attributes:
        name: its path inside the data folder, such as ``"longbench/qasper.jsonl"``.
        fields: what each line must have: a name and its kind, one of ``str``, ``int``, ``float``, ``bool``, ``list``,
            ``dict``, ``list[kind]``, or a tuple of kinds that will all do. More fields than these are left alone.
        check: raises ValueError for a record that has its fields and still cannot be used.
        unpack: turns the checked records, and the file's path, into those that a task builds prompts of.
        parse: for a file that is one JSON document instead of lines: turns it, and the file's path, into records.
            Raises ValueError, naming the place, for a document that is not of its form. ``fields`` is then of each
            record.
    """

    name: str
    fields: Mapping[str, Any]
    source: str = ""
    check: Callable[[Record], None] | None = None
    unpack: Callable[[list[Record], Path], list[Record]] | None = None
    parse: Callable[[Any, Path], list[Record]] | None = None


class FileRef(str):
    """A file that a record refers to instead of holding it: the SHA-256 of its bytes, and where it lies.

    It compares, hashes and becomes JSON as the digest, so what is keyed by a record depends on what is in the file and
    not on where it is; and a record stays small on its way to another process.
    """

    path: Path

    def __new__(cls, digest: str, path: Path) -> FileRef:
        self = super().__new__(cls, digest)
        self.path = path
        return self

    def __reduce__(self) -> tuple[type[FileRef], tuple[str, Path]]:
        return FileRef, (str(self), self.path)

    @classmethod
    def to(cls, path: Path) -> FileRef:
        """A reference to the file as it now is."""
        return cls(hashlib.sha256(_bytes(path)).hexdigest(), path.resolve())

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            DataError: it is gone, or not the same any more.
        """
        data = _bytes(self.path)
        if hashlib.sha256(data).hexdigest() != self:
            raise DataError(f"{self.path}: changed since its records were read; start again with --retry-errors")
        return data


class DataTask(Protocol):
    """A task, as far as its data goes; see ``longspan_eval.task.Task``."""

    @property
    def name(self) -> str: ...

    @property
    def data(self) -> DataFile | None: ...


def read_records(task: DataTask, data_dir: Path | str | None) -> list[Record]:
    """The records that a task builds prompts of, in the order of its file.

    Args:
        task: one with ``data``.
        data_dir: the data folder, in which ``task.data.name`` lies. ``SAMPLES`` has one of made text for every task.

    Raises:
        ValueError: the task reads no data.
        DataError: there is no folder or file, or a line or field is not as the task needs it.
    """
    if task.data is None:
        raise ValueError(f"{task.name} is synthetic and reads no data file")
    if data_dir is None:
        source = f" ({task.data.source})" if task.data.source else ""
        raise DataError(
            f"{task.name} reads {task.data.name}{source}: pass its folder (--data-dir). "
            f"{SAMPLES / task.data.name} shows its format"
        )
    return read_file(task.data, Path(data_dir))


def check_folder(folder: Path | None) -> None:
    """Raise DataError if a given data folder does not exist."""
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder}: this folder does not exist; it must hold the data files")


def read_file(file: DataFile, folder: Path) -> list[Record]:
    """The records of one file; see ``read_records``."""
    path = folder / file.name
    if not path.is_file():
        raise DataError(
            f"{path}: this file does not exist ({file.source}). {SAMPLES / file.name} shows its format"
            if folder.is_dir()
            else f"{folder}: this data folder does not exist; it must hold {file.name}"
        )
    records = _parsed(path, file) if file.parse is not None else _lines(path, file)
    if not records:
        raise DataError(f"{path}: it holds no records. {SAMPLES / file.name} shows its format")
    return records if file.unpack is None else file.unpack(records, path)


def given(record: Record | None, depth: float | None, what: str) -> Record:
    """The record, for the ``build`` of a task that cannot do without, and has no depths.

    Raises:
        ValueError: there is none, or a depth was asked for.
    """
    if record is None:
        raise ValueError(f"{what} builds prompts of records, which read_records gives; none was given")
    if depth is not None:
        raise ValueError(f"{what} hides nothing in a text, so it cannot be at depth {depth}; leave depth at None")
    return record


def check_field(record: Mapping[str, Any], name: str, kind: Any) -> None:
    """Raise ValueError, naming the field, unless ``record[name]`` is there and of that kind of ``DataFile.fields``."""
    if name not in record:
        raise ValueError(f"field {name!r} is missing")
    _check(record[name], name, kind)


def _parsed(path: Path, file: DataFile) -> list[Record]:
    assert file.parse is not None
    try:
        records = file.parse(json.loads(_bytes(path).decode("utf-8-sig")), path)
        for number, record in enumerate(records):
            _check_record(record, file, f"record {number + 1}: ")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not one JSON document ({error})") from error
    except RecursionError:
        raise DataError(f"{path}: nested too deeply to be read") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return records


def _lines(path: Path, file: DataFile) -> list[Record]:
    records: list[Record] = []
    # Split as bytes: text may hold characters that Python, but not JSON lines, takes for the end of a line.
    for number, line in enumerate(_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
            if not isinstance(record, dict):
                raise ValueError(f"each line must be an object, not {_name_of(record)}")
            _check_record(record, file, "")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: not UTF-8 text ({error})") from error
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error.msg} at character {error.pos + 1})") from error
        except RecursionError:
            raise DataError(f"{path}, line {number}: nested too deeply to be read") from None
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        records.append(record)
    return records


def _check_record(record: Record, file: DataFile, where: str) -> None:
    try:
        for name, kind in file.fields.items():
            check_field(record, name, kind)
        if file.check is not None:
            file.check(record)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def _check(value: Any, name: str, kind: Any) -> None:
    kinds: tuple[Any, ...] = kind if isinstance(kind, tuple) else (kind,)
    for one in kinds:
        if get_origin(one) is list and isinstance(value, list):
            for n, item in enumerate(value):
                _check(item, f"{name}[{n}]", get_args(one)[0])
            return
        plain = (int, float) if one is float else one
        # In Python true is a whole number; in a file it is not.
        if get_origin(one) is None and isinstance(value, plain) and (one is bool or not isinstance(value, bool)):
            if isinstance(value, str):
                _check_text(value, name)
            return
    raise ValueError(f"field {name!r} must be {' or '.join(map(_say, kinds))}, not {_name_of(value)}")


def _check_text(text: str, name: str) -> None:
    """JSON can write half of a character that takes two escapes, and tokenizers take none of those."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"field {name!r} has {half} without its other half at character {error.start + 1}") from error


def _say(kind: Any) -> str:
    return f"a list, each of it {_say(get_args(kind)[0])}" if get_origin(kind) is list else _JSON_NAMES[kind]


def _name_of(value: Any) -> str:
    return _JSON_NAMES[type(value)]


def _bytes(path: Path) -> bytes:
    try:
        return files.read(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
