"""Other people's codecs, readers and builders of record batches, to be compared with."""

import warnings

import lz4.frame as lz4_frame  # type: ignore[import-untyped]  # it has no stubs
import snappy  # type: ignore[import-untyped]  # it has no stubs
import zstandard

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python loads its schemas the old way
    from kafka import codec as kafka_codec
    from kafka.record.default_records import (
        ControlRecord,
        DefaultRecordBatch,
        DefaultRecordBatchBuilder,
    )
    from kafka.record.memory_records import MemoryRecords

__all__ = [
    "ControlRecord",
    "DefaultRecordBatch",
    "DefaultRecordBatchBuilder",
    "MemoryRecords",
    "kafka_codec",
    "lz4_frame",
    "snappy",
    "zstandard",
]
