"""Bytes that one call moves: one module per source, each with `count(call, ...) -> perflab.record.Traffic`."""
