"""Records of finished requests for tests."""

from __future__ import annotations

from typing import Any

from infergate.core.request_record import RequestRecord


def make_record(**fields: Any) -> RequestRecord:
    """Return a record with ``fields`` set."""
    record = RequestRecord()
    for name, value in fields.items():
        setattr(record, name, value)
    return record
