"""The methods of classes connection, channel and access."""

from __future__ import annotations

from dataclasses import field

from penstock.wire.amqp.method import (
    ACCESS,
    CHANNEL,
    CONNECTION,
    Bit,
    Long,
    LongStr,
    Method,
    Octet,
    Short,
    ShortStr,
    Table,
    method,
)


@method(CONNECTION, 10, "connection.start")
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


@method(CONNECTION, 11, "connection.start-ok")
class ConnectionStartOk(Method):
    client_properties: Table = field(default_factory=dict)
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


@method(CONNECTION, 20, "connection.secure")
class ConnectionSecure(Method):
    challenge: LongStr


@method(CONNECTION, 21, "connection.secure-ok")
class ConnectionSecureOk(Method):
    response: LongStr


@method(CONNECTION, 30, "connection.tune")
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(CONNECTION, 31, "connection.tune-ok")
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(CONNECTION, 40, "connection.open")
class ConnectionOpen(Method):
    virtual_host: ShortStr = "/"
    capabilities: ShortStr = ""
    insist: Bit = False


@method(CONNECTION, 41, "connection.open-ok")
class ConnectionOpenOk(Method):
    known_hosts: ShortStr = ""


@method(CONNECTION, 50, "connection.close")
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@method(CONNECTION, 51, "connection.close-ok")
class ConnectionCloseOk(Method):
    pass


@method(CONNECTION, 60, "connection.blocked")
class ConnectionBlocked(Method):
    reason: ShortStr = ""


@method(CONNECTION, 61, "connection.unblocked")
class ConnectionUnblocked(Method):
    pass


@method(CONNECTION, 70, "connection.update-secret")
class ConnectionUpdateSecret(Method):
    new_secret: LongStr
    reason: ShortStr


@method(CONNECTION, 71, "connection.update-secret-ok")
class ConnectionUpdateSecretOk(Method):
    pass


@method(CHANNEL, 10, "channel.open")
class ChannelOpen(Method):
    out_of_band: ShortStr = ""


@method(CHANNEL, 11, "channel.open-ok")
class ChannelOpenOk(Method):
    channel_id: LongStr = b""


@method(CHANNEL, 20, "channel.flow")
class ChannelFlow(Method):
    active: Bit


@method(CHANNEL, 21, "channel.flow-ok")
class ChannelFlowOk(Method):
    active: Bit


@method(CHANNEL, 40, "channel.close")
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@method(CHANNEL, 41, "channel.close-ok")
class ChannelCloseOk(Method):
    pass


@method(ACCESS, 10, "access.request")
class AccessRequest(Method):
    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(ACCESS, 11, "access.request-ok")
class AccessRequestOk(Method):
    ticket: Short = 1
