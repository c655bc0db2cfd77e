"""The methods of classes exchange, queue, basic, confirm and tx."""

from __future__ import annotations

from dataclasses import field

from penstock.wire.amqp.method import (
    BASIC,
    CONFIRM,
    EXCHANGE,
    QUEUE,
    TX,
    Bit,
    Long,
    LongLong,
    Method,
    Short,
    ShortStr,
    Table,
    method,
)


@method(EXCHANGE, 10, "exchange.declare")
class ExchangeDeclare(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(EXCHANGE, 11, "exchange.declare-ok")
class ExchangeDeclareOk(Method):
    pass


@method(EXCHANGE, 20, "exchange.delete")
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


@method(EXCHANGE, 21, "exchange.delete-ok")
class ExchangeDeleteOk(Method):
    pass


@method(EXCHANGE, 30, "exchange.bind")
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(EXCHANGE, 31, "exchange.bind-ok")
class ExchangeBindOk(Method):
    pass


@method(EXCHANGE, 40, "exchange.unbind")
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(EXCHANGE, 51, "exchange.unbind-ok")
class ExchangeUnbindOk(Method):
    pass


@method(QUEUE, 10, "queue.declare")
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(QUEUE, 11, "queue.declare-ok")
class QueueDeclareOk(Method):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(QUEUE, 20, "queue.bind")
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(QUEUE, 21, "queue.bind-ok")
class QueueBindOk(Method):
    pass


@method(QUEUE, 30, "queue.purge")
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    nowait: Bit = False


@method(QUEUE, 31, "queue.purge-ok")
class QueuePurgeOk(Method):
    message_count: Long


@method(QUEUE, 40, "queue.delete")
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@method(QUEUE, 41, "queue.delete-ok")
class QueueDeleteOk(Method):
    message_count: Long


@method(QUEUE, 50, "queue.unbind")
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = field(default_factory=dict)


@method(QUEUE, 51, "queue.unbind-ok")
class QueueUnbindOk(Method):
    pass


@method(BASIC, 10, "basic.qos")
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@method(BASIC, 11, "basic.qos-ok")
class BasicQosOk(Method):
    pass


@method(BASIC, 20, "basic.consume")
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(BASIC, 21, "basic.consume-ok")
class BasicConsumeOk(Method):
    consumer_tag: ShortStr


@method(BASIC, 30, "basic.cancel")
class BasicCancel(Method):
    consumer_tag: ShortStr
    nowait: Bit = False


@method(BASIC, 31, "basic.cancel-ok")
class BasicCancelOk(Method):
    consumer_tag: ShortStr


@method(BASIC, 40, "basic.publish", has_content=True)
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(BASIC, 50, "basic.return", has_content=True)
class BasicReturn(Method):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(BASIC, 60, "basic.deliver", has_content=True)
class BasicDeliver(Method):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(BASIC, 70, "basic.get")
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@method(BASIC, 71, "basic.get-ok", has_content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@method(BASIC, 72, "basic.get-empty")
class BasicGetEmpty(Method):
    cluster_id: ShortStr = ""


@method(BASIC, 80, "basic.ack")
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(BASIC, 90, "basic.reject")
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit = True


@method(BASIC, 100, "basic.recover-async")
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(BASIC, 110, "basic.recover")
class BasicRecover(Method):
    requeue: Bit = False


@method(BASIC, 111, "basic.recover-ok")
class BasicRecoverOk(Method):
    pass


@method(BASIC, 120, "basic.nack")
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


@method(CONFIRM, 10, "confirm.select")
class ConfirmSelect(Method):
    nowait: Bit = False


@method(CONFIRM, 11, "confirm.select-ok")
class ConfirmSelectOk(Method):
    pass


@method(TX, 10, "tx.select")
class TxSelect(Method):
    pass


@method(TX, 11, "tx.select-ok")
class TxSelectOk(Method):
    pass


@method(TX, 20, "tx.commit")
class TxCommit(Method):
    pass


@method(TX, 21, "tx.commit-ok")
class TxCommitOk(Method):
    pass


@method(TX, 30, "tx.rollback")
class TxRollback(Method):
    pass


@method(TX, 31, "tx.rollback-ok")
class TxRollbackOk(Method):
    pass
