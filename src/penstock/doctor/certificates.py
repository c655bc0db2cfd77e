"""How long a certificate is still valid. A pure rule over what `ssl.SSLSocket.getpeercert()` returns."""

import ssl
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.doctor.findings import Found
from penstock.doctor.units import duration

_SOON_MS: Final = 30 * 86_400_000


def expiry(listener: str, certificate: Mapping[str, object], *, now_ms: int) -> Iterator[Found]:
    """Report a certificate that ends within 30 days, that has ended, or whose end cannot be read."""
    remedy = f"renew the certificate of listener {listener}"
    try:
        end_ms = ssl.cert_time_to_seconds(str(certificate["notAfter"])) * 1000
    except (KeyError, ValueError):
        yield Found(f"listener {listener}: the end of its certificate cannot be read", remedy)
        return
    left_ms = end_ms - now_ms
    if left_ms <= 0:
        yield Found(f"listener {listener}: its certificate ended {duration(-left_ms)} ago", remedy)
    elif left_ms < _SOON_MS:
        yield Found(f"listener {listener}: its certificate ends in {duration(left_ms)}", remedy)
