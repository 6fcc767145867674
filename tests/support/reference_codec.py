"""Records through thriftpy2's own pure Python protocol: an implementation that is not ours.

It writes what ours writes, and reads what is not malformed (lists as keys of a map excepted).
"""

from typing import TypeVar

from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TPayload
from thriftpy2.transport import TMemoryBuffer

Record = TypeVar("Record", bound=TPayload)


def encode(record: TPayload) -> bytes:
    transport = TMemoryBuffer()
    record.write(TBinaryProtocol(transport))
    return transport.getvalue()


def decode(cls: type[Record], data: bytes) -> Record:
    record = cls()
    record.read(TBinaryProtocol(TMemoryBuffer(data)))
    return record
