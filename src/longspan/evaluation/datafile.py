"""Local data files of tasks: JSON lines, checked field by field before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.errors import LongspanError
from longspan.evaluation.task import Record, Task


@dataclass(frozen=True)
class DataFile:
    """A file of JSON objects, one a line.

    Attributes:
        name: its name in the data folder.
        fields: the type, or types, of each field that a line must have.
    """

    name: str
    fields: Mapping[str, Any]


def read_records(task: Task, data_dir: Path | None) -> list[Record]:
    """The lines of the file that a task reads.

    Raises:
        LongspanError: there is no folder or file, or a line is not as the task needs it; names file, line and field.
    """
    if task.data is None:
        raise LongspanError(f"{task.name} is made, so it reads no data")
    if data_dir is None:
        raise LongspanError(f"{task.name} reads {task.data.name}; say with --data-dir in which folder that lies")
    path = data_dir / task.data.name
    if not path.is_file():
        raise LongspanError(f"{path}: there is no such file; {task.name} reads it")
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            records.append(_record(f"{path}: line {number}", line, task.data.fields))
    if not records:
        raise LongspanError(f"{path}: the file holds no records; {task.name} reads it")
    return records


def _record(where: str, line: str, fields: Mapping[str, Any]) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise LongspanError(f"{where}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise LongspanError(f"{where}: a JSON object is needed, not {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise LongspanError(f"{where}: the field {name!r} is missing")
        if not isinstance(record[name], kind):
            raise LongspanError(f"{where}: the field {name!r} cannot be a {type(record[name]).__name__}")
    return record
