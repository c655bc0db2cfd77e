"""What a topic's settings mean for an append, worked out once for all partitions that share them."""

from functools import lru_cache
from typing import Final, NamedTuple

from penstock.model.configs import TopicConfig
from penstock.model.errors import MessageTooLarge
from penstock.model.steps import finish
from penstock.records.batch import HEADER_SIZE, BatchHeader, parse_header, stamp_append_time
from penstock.records.compression import Codec, DecompressedTooLarge, decompress
from penstock.records.crc32c import crc32c
from penstock.records.opening import SMALL_BYTES, decompressed_limit
from penstock.records.validation import (
    UNBOUNDED_MS,
    check_client_batch,
    check_keys_of,
    recompress,
)

COMPACT: Final = "compact"  # a cleanup policy
_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class TakesLong(Exception):
    """The batch has to be opened first, away from the loop. Nothing was changed."""

    def __init__(self, limits: "Limits") -> None:
        super().__init__("the batch must be opened before it can be appended")
        self.limits = limits


class Limits(NamedTuple):
    max_batch_bytes: int
    before_max_ms: int
    after_max_ms: int
    append_time: bool
    needs_keys: bool
    codec: Codec | None  # None: as the producer sent it
    level: int | None
    opens_batches: bool  # a batch may have to be looked into, or rewritten
    max_opened_bytes: int  # decompressed, of a batch that is looked into

    def check(
        self, records: memoryview, now_ms: int, *, transactional: bool, zstd: bool
    ) -> BatchHeader:
        """The header of a client's batch that this topic may take."""
        return check_client_batch(
            records,
            max_batch_bytes=self.max_batch_bytes,
            now_ms=now_ms,
            before_max_ms=self.before_max_ms,
            after_max_ms=self.after_max_ms,
            transactional=transactional,
            zstd=zstd,
        )

    def rewrite(
        self, records: memoryview, header: BatchHeader, now_ms: int, *, is_opened: bool = False
    ) -> tuple[memoryview, BatchHeader]:
        """The batch as this topic wants it. Raises TakesLong when that would hold up the loop.

        `is_opened`: its records were looked into, and have the codec of the topic.
        """
        if not is_opened:
            self._open_if_small(records, header)
        if self.other_codec(header):
            records = self.recompressed(records)
        if self.append_time:
            stamp_append_time(records, now_ms)
        return records, parse_header(records)

    def _open_if_small(self, records: memoryview, header: BatchHeader) -> None:
        if not self.needs_keys and not self.other_codec(header):
            return
        if len(records) > SMALL_BYTES:
            raise TakesLong(self)
        try:
            data = decompress(header.codec, records[HEADER_SIZE:], SMALL_BYTES)
        except DecompressedTooLarge:
            raise TakesLong(self) from None
        if self.needs_keys:
            finish(check_keys_of(bytes(data), header))

    def other_codec(self, header: BatchHeader) -> bool:
        return self.codec is not None and header.codec != self.codec

    def recompressed(self, records: memoryview) -> memoryview:
        """The batch under the topic's codec. Any thread may call it."""
        assert self.codec is not None
        output = recompress(records, self.codec, self.level, self.max_opened_bytes)
        if len(output) > self.max_batch_bytes:
            raise MessageTooLarge(
                f"batch of {len(output)} bytes after compression.type; "
                f"max.message.bytes is {self.max_batch_bytes}"
            )
        return memoryview(output)


@lru_cache(maxsize=4096)
def limits_of(config: TopicConfig) -> Limits:
    append_time = config.message_timestamp_type == "LogAppendTime"
    codec = _CODECS.get(config.compression_type)
    needs_keys = COMPACT in config.cleanup_policy
    return Limits(
        max_batch_bytes=config.max_message_bytes,
        before_max_ms=UNBOUNDED_MS if append_time else config.message_timestamp_before_max_ms,
        after_max_ms=UNBOUNDED_MS if append_time else config.message_timestamp_after_max_ms,
        append_time=append_time,
        needs_keys=needs_keys,
        codec=codec,
        level=_level(config, codec),
        opens_batches=append_time or needs_keys or codec is not None,
        max_opened_bytes=decompressed_limit(config.max_message_bytes),
    )


def _level(config: TopicConfig, codec: Codec | None) -> int | None:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    level = levels.get(codec) if codec is not None else None
    return None if level == -1 else level


def jitter_ms(config: TopicConfig, topic_id: bytes, partition: int, base_offset: int) -> int:
    """The part taken off `segment.ms`: another one for each segment, the same after a restart."""
    if not config.segment_jitter_ms:
        return 0
    place = b"%s%d.%d" % (topic_id, partition, base_offset)
    return crc32c(place) % config.segment_jitter_ms
