"""The part of etcd's wire format that is spoken here. Field numbers are etcd's; names, and the pool of types, our own.

Made at import from the table below: nothing is generated, and no other etcd library in the process can clash.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE: Final = "penstock.etcd"

# message: field number, type (a star: repeated), name
_TABLE: Final = """
Header: 1 uint64 cluster_id, 2 uint64 member_id, 3 int64 revision, 4 uint64 raft_term
KeyValue: 1 bytes key, 2 int64 create_revision, 3 int64 mod_revision, 5 bytes value, 6 int64 lease
RangeRequest: 1 bytes key, 2 bytes range_end, 3 int64 limit, 4 int64 revision, 8 bool keys_only
RangeResponse: 1 Header header, 2 KeyValue* kvs, 3 bool more
PutRequest: 1 bytes key, 2 bytes value, 3 int64 lease
DeleteRequest: 1 bytes key, 2 bytes range_end
Operation: 1 RangeRequest range, 2 PutRequest put, 3 DeleteRequest delete
Outcome: 1 RangeResponse range
Compare: 1 int32 result, 2 int32 target, 3 bytes key, 5 int64 create_revision, 6 int64 mod_revision
TxnRequest: 1 Compare* compare, 2 Operation* success, 3 Operation* failure
TxnResponse: 1 Header header, 2 bool succeeded, 3 Outcome* responses
GrantRequest: 1 int64 ttl, 2 int64 id
GrantResponse: 1 Header header, 2 int64 id, 3 int64 ttl
RevokeRequest: 1 int64 id
RevokeResponse: 1 Header header
KeepAliveRequest: 1 int64 id
KeepAliveResponse: 1 Header header, 2 int64 id, 3 int64 ttl
WatchCreate: 1 bytes key, 2 bytes range_end, 3 int64 start_revision, 8 bool fragment
WatchProgress:
WatchRequest: 1 WatchCreate create, 3 WatchProgress progress
Event: 1 int32 type, 2 KeyValue kv
WatchResponse: 1 Header header, 3 bool created, 4 bool canceled, 5 int64 compact_revision, \
6 string cancel_reason, 7 bool fragment, 11 Event* events
StatusRequest:
StatusResponse: 1 Header header, 2 string version, 4 uint64 leader
AuthenticateRequest: 1 string name, 2 string password
AuthenticateResponse: 1 Header header, 2 string token
"""

TARGET_CREATE_REVISION: Final = 1
TARGET_MOD_REVISION: Final = 2
EVENT_DELETE: Final = 1


def _file() -> FileDescriptorProto:
    """As proto2: a number that was set is sent even if it is zero, as in a `oneof` of etcd's."""
    file = FileDescriptorProto(name="penstock/etcd.proto", package=_PACKAGE, syntax="proto2")
    for line in _TABLE.strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        message.field.extend(map(_field, filter(None, fields.strip().split(", "))))
    return file


def _field(text: str) -> FieldDescriptorProto:
    number, kind, name = text.split()
    field = FieldDescriptorProto(name=name, number=int(number))
    field.label = FieldDescriptorProto.LABEL_OPTIONAL
    if kind.endswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    kind = kind.rstrip("*")
    if kind[0].isupper():
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return field


def _classes() -> Iterator[tuple[str, Any]]:
    pool = DescriptorPool()
    file = _file()
    pool.Add(file)
    for message in file.message_type:
        descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        yield message.name, GetMessageClass(descriptor)


_CLASSES: Final = dict(_classes())

# Any: the classes exist only at run time.
Compare: Any = _CLASSES["Compare"]
DeleteRequest: Any = _CLASSES["DeleteRequest"]
Event: Any = _CLASSES["Event"]
Header: Any = _CLASSES["Header"]
KeyValue: Any = _CLASSES["KeyValue"]
Operation: Any = _CLASSES["Operation"]
Outcome: Any = _CLASSES["Outcome"]
PutRequest: Any = _CLASSES["PutRequest"]
RangeRequest: Any = _CLASSES["RangeRequest"]
RangeResponse: Any = _CLASSES["RangeResponse"]
TxnRequest: Any = _CLASSES["TxnRequest"]
TxnResponse: Any = _CLASSES["TxnResponse"]
GrantRequest: Any = _CLASSES["GrantRequest"]
GrantResponse: Any = _CLASSES["GrantResponse"]
RevokeRequest: Any = _CLASSES["RevokeRequest"]
RevokeResponse: Any = _CLASSES["RevokeResponse"]
KeepAliveRequest: Any = _CLASSES["KeepAliveRequest"]
KeepAliveResponse: Any = _CLASSES["KeepAliveResponse"]
WatchCreate: Any = _CLASSES["WatchCreate"]
WatchProgress: Any = _CLASSES["WatchProgress"]
WatchRequest: Any = _CLASSES["WatchRequest"]
WatchResponse: Any = _CLASSES["WatchResponse"]
StatusRequest: Any = _CLASSES["StatusRequest"]
StatusResponse: Any = _CLASSES["StatusResponse"]
AuthenticateRequest: Any = _CLASSES["AuthenticateRequest"]
AuthenticateResponse: Any = _CLASSES["AuthenticateResponse"]
