"""Which source of bytes to show when a record has several."""

from perflab.record import Record, Traffic

#: From the least to the most trusted.
ORDER = ("dispatch", "compiler", "interpreted", "counter")


def best(record: Record) -> Traffic | None:
    """The most trusted entry; None when nothing was counted."""
    return max(record.traffic, key=lambda traffic: ORDER.index(traffic.source), default=None)
