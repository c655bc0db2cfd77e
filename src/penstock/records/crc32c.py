"""CRC-32C (Castagnoli), the checksum of record batches, at memory speed and without a copy."""

from collections.abc import Callable
from typing import Final

import fastcrc

# An alias and not a function of ours: this runs once per batch, and a call more would cost 5 %.
crc32c: Final[Callable[[bytes | bytearray | memoryview], int]] = fastcrc.crc32.iscsi
