# cython: auto_pickle=False, language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled engine of decoding. Makes the same columns as `plain.Builder`.

The rules that hold here:

- It decodes well-formed heartbeats only. Others (truncated, malformed, a field, window or executor
  twice) it leaves to the plain engine, which decodes them or gives the reason.
- No byte is read before it was held against the end; a count is held against what is left before
  anything is repeated. Nothing is allocated by a length that a value announces.
- Time is linear in the bytes: what is looked up is hashed, with a key that no sender knows.
- A text (a window, a component, a stream) is stored and checked to be UTF-8 once in a batch. Rows
  have its number.
- Columns are written to memory of Arrow's pool, which becomes theirs without a copy: the system
  would take as long to clear memory of its own each time as reading does. The bits that Arrow has
  for what is there and what is not are gathered from a mask for each row at the end.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os

from stormkeeper.pipeline.decoding import layout

cdef enum:
    # Thrift's types.
    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    MAP = 13
    SET = 14
    LIST = 15
    # How deep unknown fields may nest, as in `thrift.reader`.
    MAX_DEPTH = 64
    # The statistics in the order of the rows, counts before averages.
    EMITTED = 0
    TRANSFERRED = 1
    EXECUTED = 2
    ACKED = 3
    FAILED = 4
    COMPLETE = 5
    EXECUTE = 6
    PROCESS = 7
    STATISTICS = 8
    # A row's mask: a bit for each statistic that is there, then these.
    IS_PARTIAL = 8
    HAS_SOURCE = 9
    # An executor's mask.
    HAS_COMPONENT = 0
    HAS_KIND = 1
    # A heartbeat's.
    IS_PRESENT = 0
    IS_COMPLETED = 1
    # The places of kinds in `layout`.
    BOLT = 0
    SPOUT = 1
    # Fields of ours, by their numbers, and as bits of a set in which other ones are their numbers.
    OURS = 1000
    OURS_TOO = 1001
    SEEN_OURS = 1 << 16
    SEEN_OURS_TOO = 1 << 17
    # The columns, by their places among a builder's memory; those of the statistics come last.
    WINDOW = 0
    SOURCE = 1
    STREAM = 2
    TASK_START = 3
    TASK_END = 4
    COMPONENT = 5
    KIND = 6
    RATE = 7
    ROWS_FROM = 8
    TIME_SECS = 9
    UPTIME_SECS = 10
    EXECUTORS_FROM = 11
    POOL = 12
    STATISTIC = 13
    COLUMNS = 21
    # Left alone.
    REFUSED = -1
    # Places in a table at first, and entries of other memory.
    SLOTS = 64
    # Bytes that one builder takes at most, so that 31 bits number all that is in it.
    MOST_BYTES = 1 << 30

# What a heartbeat's names may take in its rows, in bytes.
cdef int64_t NAME_BYTES = layout.NAME_BYTES

cdef struct Text:
    int64_t offset
    int64_t length
    uint64_t hash
    # The text that was the next window after this one, the last time.
    int32_t following
    # The statistic in which it was a window last, and the executor of which it was one of the
    # windows that are counted in part, or not.
    uint64_t in_statistic
    uint64_t in_partial
    bint is_partial

cdef struct Stream:
    # How it was written first in this heartbeat.
    const uint8_t *written
    Py_ssize_t length
    # Texts; -1: a stream that the executor itself emits on.
    int32_t source
    int32_t stream

cdef struct Slot:
    uint64_t key
    uint64_t epoch
    int32_t value

# A table from numbers to numbers. It is emptied by a new epoch.
cdef struct Numbers:
    Slot *slots
    uint64_t size
    uint64_t used
    uint64_t epoch


cdef int grown(void **start, Py_ssize_t size) except -1:
    cdef void *larger = realloc(start[0], size)
    if larger == NULL:
        raise MemoryError()
    start[0] = larger
    return 0


cdef inline int32_t read_i32(const uint8_t *at) noexcept nogil:
    return <int32_t>(
        <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]
    )


cdef inline int64_t read_i64(const uint8_t *at) noexcept nogil:
    return <int64_t>(
        <uint64_t>at[0] << 56 | <uint64_t>at[1] << 48 | <uint64_t>at[2] << 40
        | <uint64_t>at[3] << 32 | <uint64_t>at[4] << 24 | <uint64_t>at[5] << 16
        | <uint64_t>at[6] << 8 | <uint64_t>at[7]
    )


cdef inline uint64_t little(const uint8_t *at) noexcept nogil:
    return (
        <uint64_t>at[0] | <uint64_t>at[1] << 8 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 24
        | <uint64_t>at[4] << 32 | <uint64_t>at[5] << 40 | <uint64_t>at[6] << 48
        | <uint64_t>at[7] << 56
    )


cdef inline uint64_t turned(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef uint64_t siphash(uint64_t *key, const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """SipHash-1-3, as Python's own strings: whoever does not know the key finds no collisions."""
    cdef uint64_t[4] v
    cdef uint64_t word = 0
    cdef Py_ssize_t at = 0
    cdef int place, last
    v[0] = key[0] ^ 0x736f6d6570736575ULL
    v[1] = key[1] ^ 0x646f72616e646f6dULL
    v[2] = key[0] ^ 0x6c7967656e657261ULL
    v[3] = key[1] ^ 0x7465646279746573ULL
    while length - at >= 8:
        word = little(data + at)
        v[3] ^= word
        mixed(v)
        v[0] ^= word
        at += 8
    word = <uint64_t>length << 56
    last = <int>(length - at)
    for place in range(last):
        word |= <uint64_t>data[at + place] << (8 * place)
    v[3] ^= word
    mixed(v)
    v[0] ^= word
    v[2] ^= 0xff
    mixed(v)
    mixed(v)
    mixed(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline void mixed(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = turned(v[1], 13) ^ v[0]
    v[3] = turned(v[3], 16) ^ v[2]
    v[0] = turned(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = turned(v[1], 17) ^ v[2]
    v[3] = turned(v[3], 21) ^ v[0]
    v[2] = turned(v[2], 32)


cdef inline uint64_t spread(uint64_t key) noexcept nogil:
    key ^= key >> 32
    key *= 0x9fb21c651e98df25ULL
    key ^= key >> 29
    key *= 0xd6e8feb86659fd93ULL
    return key ^ key >> 32


cdef int emptied(Numbers *numbers) except -1:
    numbers.epoch += 1
    numbers.used = 0
    if numbers.slots == NULL:
        numbers.slots = <Slot *>malloc(SLOTS * sizeof(Slot))
        if numbers.slots == NULL:
            raise MemoryError()
        memset(numbers.slots, 0, SLOTS * sizeof(Slot))
        numbers.size = SLOTS
    return 0


cdef inline Slot *place_of(Numbers *numbers, uint64_t seed, uint64_t key) noexcept nogil:
    """Return the slot of a key, or the one where it belongs: that is of an earlier epoch."""
    cdef uint64_t at = spread(key ^ seed) & (numbers.size - 1)
    while numbers.slots[at].epoch == numbers.epoch and numbers.slots[at].key != key:
        at = (at + 1) & (numbers.size - 1)
    return &numbers.slots[at]


cdef int put(Numbers *numbers, uint64_t seed, Slot *slot, uint64_t key, int32_t value) except -1:
    """Put a new key where `place_of` says that it belongs."""
    cdef Numbers larger
    cdef uint64_t at
    slot.key = key
    slot.epoch = numbers.epoch
    slot.value = value
    numbers.used += 1
    if numbers.used * 2 <= numbers.size:
        return 0
    larger = numbers[0]
    larger.size = numbers.size * 2
    larger.slots = <Slot *>malloc(larger.size * sizeof(Slot))
    if larger.slots == NULL:
        raise MemoryError()
    memset(larger.slots, 0, larger.size * sizeof(Slot))
    for at in range(numbers.size):
        if numbers.slots[at].epoch == numbers.epoch:
            place_of(&larger, seed, numbers.slots[at].key)[0] = numbers.slots[at]
    free(numbers.slots)
    numbers[0] = larger
    return 0


cdef inline int least(int kind) noexcept nogil:
    """Return the bytes that a value of a type has at least; 0: no type."""
    if kind == BOOL or kind == BYTE or kind == STRUCT:
        return 1
    if kind == I16:
        return 2
    if kind == I32 or kind == STRING:
        return 4
    if kind == DOUBLE or kind == I64:
        return 8
    if kind == MAP:
        return 6
    return 5 if kind == SET or kind == LIST else 0


cdef inline bint is_fixed(int kind) noexcept nogil:
    return kind != STRING and kind != STRUCT and kind != MAP and kind != SET and kind != LIST


cdef object bits(const uint16_t *masks, int32_t count, int bit):
    """Gather one bit of each mask, as Arrow packs them."""
    memory = layout.memory((<Py_ssize_t>count + 7) // 8)
    cdef uint8_t *packed = <uint8_t *>address(memory)
    cdef uint8_t byte
    cdef int32_t at = 0
    cdef int place
    while at < count:
        byte = 0
        for place in range(8 if count - at >= 8 else count - at):
            byte |= (masks[at + place] >> bit & 1) << place
        packed[at // 8] = byte
        at += 8
    return memory


cdef void *address(memory) except? NULL:
    return <void *><size_t>memory.address


cdef inline bint is_narrow(int64_t value) noexcept nogil:
    return -2147483648 <= value <= 2147483647


cdef inline bint same(const void *one, const void *other, int64_t length) noexcept nogil:
    return length == 0 or memcmp(one, other, length) == 0


cdef bint is_utf8(const uint8_t *data, Py_ssize_t length) except -1:
    cdef Py_ssize_t at
    for at in range(length):
        if data[at] >= 0x80:
            break
    else:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>data, length, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef class Builder:
    """Heartbeats, one after another, and then their columns; see `plain.Builder`."""

    #: Bytes of heartbeats, and of names in their rows, that are in it.
    cdef readonly int64_t weight
    # The heartbeat that is being read, and what its names take in its rows.
    cdef const uint8_t *data
    cdef Py_ssize_t end
    cdef int64_t name_bytes
    # Makes hashes other than any sender knows.
    cdef uint64_t[2] key
    # Grows with each executor and each statistic, so that what is marked by it needs no unmarking.
    cdef uint64_t serial

    cdef Text *texts
    cdef int32_t text_count, text_room
    cdef int32_t *text_slots
    cdef uint64_t text_size
    cdef char *pool
    cdef int64_t pool_used, pool_room
    cdef int32_t first_window

    cdef Stream *streams
    cdef int32_t stream_count, stream_room
    # The stream that began the last map, of those emitted on and of those that came in.
    cdef int32_t[2] first_stream
    cdef Numbers stream_numbers, row_numbers, executor_numbers

    cdef int32_t *window
    cdef int32_t *source
    cdef int32_t *stream
    cdef uint16_t *row_mask
    cdef int64_t *statistic[STATISTICS]
    cdef int32_t row_count, row_room

    cdef int32_t *task_start
    cdef int32_t *task_end
    cdef int32_t *component
    cdef int32_t *kind
    cdef uint16_t *executor_mask
    cdef int64_t *rate
    # Where an executor's rows begin, and those of the next one.
    cdef int32_t *rows_from
    cdef int32_t executor_count, executor_room

    cdef int64_t *time_secs
    cdef int32_t *uptime_secs
    cdef uint16_t *heartbeat_mask
    cdef int32_t *executors_from
    cdef int32_t count, room
    cdef list reasons
    # Of each column; None when they were given away.
    cdef list memory

    def __cinit__(self):
        cdef bytes secret = os.urandom(16)
        memcpy(self.key, PyBytes_AS_STRING(secret), 16)
        self.reasons = []
        self.memory = [None] * COLUMNS
        self.serial = 1
        self._grow_texts(SLOTS)
        self._grow_rows(SLOTS)
        self._grow_executors(SLOTS)
        self._grow_heartbeats(SLOTS)
        self.rows_from[0] = self.executors_from[0] = 0
        self.pool_room = 4096
        self.pool = <char *>self._sized(POOL, self.pool_room)
        grown(<void **>&self.streams, SLOTS * sizeof(Stream))
        self.stream_room = SLOTS

    def __dealloc__(self):
        free(self.texts)
        free(self.text_slots)
        free(self.streams)
        free(self.stream_numbers.slots)
        free(self.row_numbers.slots)
        free(self.executor_numbers.slots)
        free(self.row_mask)
        free(self.executor_mask)
        free(self.heartbeat_mask)

    def add(self, bytes data not None):
        """Add a heartbeat, uncompressed; return whether it was taken."""
        cdef int32_t rows = self.row_count, executors = self.executor_count
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.weight + size > MOST_BYTES:
            return False
        self._begin()
        self.data = <const uint8_t *>PyBytes_AS_STRING(data)
        self.end = size
        self.name_bytes = 0
        self.stream_count = 0
        self.first_stream[0] = self.first_stream[1] = 0
        emptied(&self.stream_numbers)
        if self._heartbeat() < 0 or self.name_bytes > NAME_BYTES:
            self.row_count = rows
            self.executor_count = executors
            return False
        self.weight += size + self.name_bytes
        self._end(None)
        return True

    def refuse(self, reason):
        """Add a row without a heartbeat, and why it has none."""
        self._begin()
        self.time_secs[self.count] = 0
        self.uptime_secs[self.count] = 0
        self.heartbeat_mask[self.count] = 0
        self._end(reason)

    def __len__(self):
        return self.count

    def finish(self):
        """Return the columns, by name. The builder takes no more."""
        cdef int32_t rows = self.row_count, executors = self.executor_count, count = self.count
        cdef int column
        if self.memory is None:
            raise ValueError("the builder has finished")
        texts = self._all_texts()
        source = bits(self.row_mask, rows, HAS_SOURCE)
        counters = [
            self._chosen(texts, WINDOW, rows),
            self._chosen(texts, SOURCE, rows, source),
            self._chosen(texts, STREAM, rows),
        ]
        for column in range(STATISTICS):
            counters.append(
                layout.column(
                    layout.COUNTER[3 + column].type,
                    rows,
                    self._cut(STATISTIC + column, 8 * rows),
                    bits(self.row_mask, rows, column),
                )
            )
        counters.append(
            layout.column(layout.COUNTER[11].type, rows, bits(self.row_mask, rows, IS_PARTIAL))
        )
        rows_from = self._cut(ROWS_FROM, 4 * (executors + 1))
        component = bits(self.executor_mask, executors, HAS_COMPONENT)
        kind = bits(self.executor_mask, executors, HAS_KIND)
        of = layout.EXECUTOR
        reported = [
            layout.column(of[0].type, executors, self._cut(TASK_START, 4 * executors)),
            layout.column(of[1].type, executors, self._cut(TASK_END, 4 * executors)),
            self._chosen(texts, COMPONENT, executors, component),
            layout.kinds(self._cut(KIND, 4 * executors), executors, kind),
            layout.column(of[4].type, executors, self._cut(RATE, 8 * executors)),
            layout.lists(layout.structs(layout.COUNTER, counters), executors, rows_from),
        ]
        present = bits(self.heartbeat_mask, count, IS_PRESENT)
        completed = bits(self.heartbeat_mask, count, IS_COMPLETED)
        time_secs, uptime_secs = self._cut(TIME_SECS, 8 * count), self._cut(UPTIME_SECS, 4 * count)
        executors_from = self._cut(EXECUTORS_FROM, 4 * (count + 1))
        self.memory = None
        of = layout.HEARTBEAT
        return {
            "time_secs": layout.column(of["time_secs"], count, time_secs, present),
            "uptime_secs": layout.column(of["uptime_secs"], count, uptime_secs, present),
            "executors": layout.lists(
                layout.structs(layout.EXECUTOR, reported), count, executors_from, present
            ),
            "completed": layout.column(of["completed"], count, completed, present),
            "error": layout.reasons(self.reasons),
        }

    cdef object _all_texts(self):
        offsets = layout.memory(4 * (<Py_ssize_t>self.text_count + 1))
        cdef int32_t *starts = <int32_t *>address(offsets)
        cdef int32_t number
        for number in range(self.text_count):
            starts[number] = <int32_t>self.texts[number].offset
        starts[self.text_count] = <int32_t>self.pool_used
        return layout.texts(self.text_count, offsets, self._cut(POOL, self.pool_used))

    cdef object _chosen(self, texts, int column, int32_t count, valid=None):
        """Return a column of texts, with a dictionary of those that its numbers name.

        A row without a text has the number 0, so that the first text may be in there unused.
        """
        memory = self._cut(column, 4 * <Py_ssize_t>count)
        cdef int32_t *numbers = <int32_t *>address(memory)
        used = layout.memory(4 * <Py_ssize_t>self.text_count)
        cdef int32_t *first = <int32_t *>address(used)
        cdef int32_t *places = NULL
        cdef int32_t at, number, known = 0
        grown(<void **>&places, (<Py_ssize_t>self.text_count + 1) * sizeof(int32_t))
        for number in range(self.text_count):
            places[number] = -1
        for at in range(count):
            number = numbers[at]
            if places[number] < 0:
                places[number] = known
                first[known] = number
                known += 1
            numbers[at] = places[number]
        free(places)
        used.resize(4 * <Py_ssize_t>known)
        among = texts.take(layout.column(layout.NUMBER, known, used))
        return layout.chosen(among, memory, count, valid)

    cdef int _begin(self) except -1:
        if self.memory is None:
            raise ValueError("the builder has finished")
        if self.count == self.room:
            self._grow_heartbeats(self.room * 2)
        return 0

    cdef int _end(self, reason) except -1:
        self.count += 1
        self.executors_from[self.count] = self.executor_count
        self.reasons.append(reason)
        return 0

    # ---- memory ----

    cdef void *_sized(self, int column, Py_ssize_t size) except NULL:
        """Return the memory of a column, made as large; it may have moved."""
        memory = self.memory[column]
        if memory is None:
            memory = self.memory[column] = layout.memory(size)
        else:
            memory.resize(size)
        return address(memory)

    cdef object _cut(self, int column, Py_ssize_t size):
        """Return the memory of a column, as large as what was written to it."""
        memory = self.memory[column]
        memory.resize(size)
        return memory

    cdef int _grow_texts(self, int32_t room) except -1:
        cdef uint64_t size = 2 * <uint64_t>room, at
        cdef int32_t number
        grown(<void **>&self.texts, room * sizeof(Text))
        grown(<void **>&self.text_slots, size * sizeof(int32_t))
        self.text_room = room
        self.text_size = size
        for at in range(size):
            self.text_slots[at] = -1
        for number in range(self.text_count):
            at = self.texts[number].hash & (size - 1)
            while self.text_slots[at] >= 0:
                at = (at + 1) & (size - 1)
            self.text_slots[at] = number
        return 0

    cdef int _grow_rows(self, int32_t room) except -1:
        cdef int column
        self.window = <int32_t *>self._sized(WINDOW, room * sizeof(int32_t))
        self.source = <int32_t *>self._sized(SOURCE, room * sizeof(int32_t))
        self.stream = <int32_t *>self._sized(STREAM, room * sizeof(int32_t))
        grown(<void **>&self.row_mask, room * sizeof(uint16_t))
        for column in range(STATISTICS):
            self.statistic[column] = <int64_t *>self._sized(
                STATISTIC + column, room * sizeof(int64_t)
            )
        self.row_room = room
        return 0

    cdef int _grow_executors(self, int32_t room) except -1:
        self.task_start = <int32_t *>self._sized(TASK_START, room * sizeof(int32_t))
        self.task_end = <int32_t *>self._sized(TASK_END, room * sizeof(int32_t))
        self.component = <int32_t *>self._sized(COMPONENT, room * sizeof(int32_t))
        self.kind = <int32_t *>self._sized(KIND, room * sizeof(int32_t))
        grown(<void **>&self.executor_mask, room * sizeof(uint16_t))
        self.rate = <int64_t *>self._sized(RATE, room * sizeof(int64_t))
        self.rows_from = <int32_t *>self._sized(ROWS_FROM, (room + 1) * sizeof(int32_t))
        self.executor_room = room
        return 0

    cdef int _grow_heartbeats(self, int32_t room) except -1:
        self.time_secs = <int64_t *>self._sized(TIME_SECS, room * sizeof(int64_t))
        self.uptime_secs = <int32_t *>self._sized(UPTIME_SECS, room * sizeof(int32_t))
        grown(<void **>&self.heartbeat_mask, room * sizeof(uint16_t))
        self.executors_from = <int32_t *>self._sized(EXECUTORS_FROM, (room + 1) * sizeof(int32_t))
        self.room = room
        return 0

    # ---- records: each returns the position after what it read, or REFUSED ----

    cdef Py_ssize_t _heartbeat(self) except -2:
        cdef Py_ssize_t at = 0
        cdef int kind = 0, field = 0, seen = 0
        cdef int32_t storm_id = 0
        cdef int64_t time_secs = 0, uptime_secs = 0
        cdef bint is_completed = False
        while True:
            at = self._field(at, &kind, &field)
            if at < 0:
                return REFUSED
            if kind == 0:
                break
            if field == 1 and kind == STRING:
                at = self._text(at, -1, &storm_id)
            elif field == 2 and kind == MAP:
                if seen & 1 << 2:
                    return REFUSED
                at = self._executors(at)
            elif field == 3 and (kind == I32 or kind == I64):
                at = self._integer(at, kind, &time_secs)
            elif field == 4 and (kind == I32 or kind == I64):
                at = self._integer(at, kind, &uptime_secs)
                if not is_narrow(uptime_secs):
                    return REFUSED
            elif field == OURS and kind == BOOL:
                if at >= self.end:
                    return REFUSED
                is_completed = self.data[at] == 1
                at += 1
                continue
            else:
                at = self._skip(at, kind, MAX_DEPTH)
                if at < 0:
                    return REFUSED
                continue
            if at < 0:
                return REFUSED
            seen |= 1 << field
        if seen != 0b11110:
            return REFUSED
        self.time_secs[self.count] = time_secs
        self.uptime_secs[self.count] = <int32_t>uptime_secs
        self.heartbeat_mask[self.count] = 1 << IS_PRESENT | is_completed << IS_COMPLETED
        return at

    cdef Py_ssize_t _executors(self, Py_ssize_t at) except -2:
        cdef int32_t count = 0, first = 0, last = 0
        cdef uint64_t tasks
        cdef Slot *slot
        at = self._map(at, STRUCT, STRUCT, &count)
        emptied(&self.executor_numbers)
        while at >= 0 and count > 0:
            count -= 1
            at = self._tasks(at, &first, &last)
            if at < 0:
                return REFUSED
            tasks = <uint64_t><uint32_t>first << 32 | <uint32_t>last
            slot = place_of(&self.executor_numbers, self.key[0], tasks)
            if slot.epoch == self.executor_numbers.epoch:
                return REFUSED
            put(&self.executor_numbers, self.key[0], slot, tasks, 0)
            if self.executor_count == self.executor_room:
                self._grow_executors(self.executor_room * 2)
            self.task_start[self.executor_count] = first
            self.task_end[self.executor_count] = last
            at = self._executor(at)
        return at

    cdef Py_ssize_t _tasks(self, Py_ssize_t at, int32_t *first, int32_t *last) except -2:
        cdef int kind = 0, field = 0, seen = 0
        cdef int64_t value = 0
        while True:
            at = self._field(at, &kind, &field)
            if at < 0:
                return REFUSED
            if kind == 0:
                return at if seen == 0b110 else REFUSED
            if (field == 1 or field == 2) and (kind == I32 or kind == I64):
                at = self._integer(at, kind, &value)
                if at < 0 or not is_narrow(value):
                    return REFUSED
                seen |= 1 << field
                if field == 1:
                    first[0] = <int32_t>value
                else:
                    last[0] = <int32_t>value
            else:
                at = self._skip(at, kind, MAX_DEPTH)
                if at < 0:
                    return REFUSED

    cdef Py_ssize_t _executor(self, Py_ssize_t at) except -2:
        cdef int32_t number = self.executor_count, first_row = self.row_count, row, component = 0
        cdef int32_t executor_kind = -1
        cdef int kind = 0, field = 0, seen = 0, bit
        cdef int64_t rows
        cdef uint64_t partial = 0
        self.serial += 1
        emptied(&self.row_numbers)
        while True:
            at = self._field(at, &kind, &field)
            if at < 0:
                return REFUSED
            if kind == 0:
                break
            bit = 1 << field if field < 16 else 0
            if field == 1 and kind == MAP:
                if seen & bit:
                    return REFUSED
                at = self._statistic(at, EMITTED, False)
            elif field == 2 and kind == MAP:
                if seen & bit:
                    return REFUSED
                at = self._statistic(at, TRANSFERRED, False)
            elif field == 3 and kind == STRUCT:
                if seen & bit:
                    return REFUSED
                at = self._specific(at, &executor_kind)
            elif field == 4 and kind == DOUBLE:
                if self.end - at < 8:
                    return REFUSED
                self.rate[number] = read_i64(self.data + at)
                at += 8
            elif field == OURS and kind == STRING:
                bit = SEEN_OURS
                at = self._text(at, component, &component)
            elif field == OURS_TOO and kind == MAP:
                bit = SEEN_OURS_TOO
                if seen & bit:
                    return REFUSED
                self.serial += 1
                partial = self.serial
                at = self._partial(at)
            else:
                bit = 0
                at = self._skip(at, kind, MAX_DEPTH)
            if at < 0:
                return REFUSED
            seen |= bit
        if seen & 0b11110 != 0b11110:
            return REFUSED
        if partial:
            for row in range(first_row, self.row_count):
                if (
                    self.texts[self.window[row]].in_partial == partial
                    and self.texts[self.window[row]].is_partial
                ):
                    self.row_mask[row] |= 1 << IS_PARTIAL
        if seen & SEEN_OURS:
            rows = self.row_count - first_row
            self.name_bytes += rows * <int64_t>self.texts[component].length
        self.component[number] = component
        self.kind[number] = executor_kind if executor_kind >= 0 else 0
        self.executor_mask[number] = (
            (seen & SEEN_OURS != 0) << HAS_COMPONENT | (executor_kind >= 0) << HAS_KIND
        )
        self.executor_count += 1
        self.rows_from[self.executor_count] = self.row_count
        return at

    cdef Py_ssize_t _specific(self, Py_ssize_t at, int32_t *executor_kind) except -2:
        cdef int kind = 0, field = 0
        while True:
            at = self._field(at, &kind, &field)
            if at < 0:
                return REFUSED
            if kind == 0:
                return at
            if (field == 1 or field == 2) and kind == STRUCT:
                if executor_kind[0] >= 0:
                    return REFUSED
                executor_kind[0] = BOLT if field == 1 else SPOUT
                at = self._statistics(at, field == 1)
            else:
                at = self._skip(at, kind, MAX_DEPTH)
            if at < 0:
                return REFUSED

    cdef Py_ssize_t _statistics(self, Py_ssize_t at, bint is_bolt) except -2:
        """Read a bolt's or a spout's own statistics."""
        cdef int kind = 0, field = 0, seen = 0, last = 5 if is_bolt else 3, column
        while True:
            at = self._field(at, &kind, &field)
            if at < 0:
                return REFUSED
            if kind == 0:
                return at if seen == (2 << last) - 2 else REFUSED
            if 1 <= field <= last and kind == MAP:
                if seen & 1 << field:
                    return REFUSED
                seen |= 1 << field
                if field == 1:
                    column = ACKED
                elif field == 2:
                    column = FAILED
                elif field == 3:
                    column = PROCESS if is_bolt else COMPLETE
                else:
                    column = EXECUTED if field == 4 else EXECUTE
                at = self._statistic(at, column, is_bolt)
            else:
                at = self._skip(at, kind, MAX_DEPTH)
            if at < 0:
                return REFUSED

    cdef Py_ssize_t _partial(self, Py_ssize_t at) except -2:
        """Read by window how many batches were counted in part."""
        cdef int32_t count = 0, window = self.first_window
        at = self._map(at, STRING, I64, &count)
        while at >= 0 and count > 0:
            count -= 1
            at = self._text(at, window, &window)
            if at < 0 or self.end - at < 8:
                return REFUSED
            self.texts[window].in_partial = self.serial
            self.texts[window].is_partial = read_i64(self.data + at) != 0
            at += 8
            window = self.texts[window].following
        return at

    cdef Py_ssize_t _statistic(self, Py_ssize_t at, int column, bint comes_in) except -2:
        """Read one statistic: a map from windows to maps from streams to numbers."""
        cdef int32_t count = 0, window = -1, guess = self.first_window, following = -1
        cdef uint64_t serial
        self.serial += 1
        serial = self.serial
        at = self._map(at, STRING, MAP, &count)
        while at >= 0 and count > 0:
            count -= 1
            at = self._text(at, guess, &following)
            if at < 0 or self.texts[following].in_statistic == serial:
                return REFUSED
            self.texts[following].in_statistic = serial
            if window < 0:
                self.first_window = following
            else:
                self.texts[window].following = following
            window = following
            guess = self.texts[window].following
            at = self._by_stream(at, column, comes_in, window)
        return at

    cdef Py_ssize_t _by_stream(
        self, Py_ssize_t at, int column, bint comes_in, int32_t window
    ) except -2:
        cdef int32_t count = 0, stream = self.first_stream[comes_in], row
        cdef bint is_first = True
        cdef uint64_t place
        cdef Slot *slot
        at = self._map(
            at, STRUCT if comes_in else STRING, I64 if column < COMPLETE else DOUBLE, &count
        )
        while at >= 0 and count > 0:
            count -= 1
            at = self._stream(at, comes_in, &stream)
            if at < 0 or self.end - at < 8:
                return REFUSED
            if is_first:
                self.first_stream[comes_in] = stream
                is_first = False
            place = <uint64_t>window << 32 | <uint64_t>stream
            slot = place_of(&self.row_numbers, self.key[0], place)
            if slot.epoch == self.row_numbers.epoch:
                row = slot.value
            else:
                row = self._new_row(window, stream)
                put(&self.row_numbers, self.key[0], slot, place, row)
            self.row_mask[row] |= 1 << column
            self.statistic[column][row] = read_i64(self.data + at)
            at += 8
            stream += 1
        return at

    cdef int32_t _new_row(self, int32_t window, int32_t number) except -1:
        cdef int32_t row = self.row_count
        cdef Stream *stream = &self.streams[number]
        cdef int column
        if row == self.row_room:
            self._grow_rows(self.row_room * 2)
        self.window[row] = window
        self.stream[row] = stream.stream
        self.name_bytes += self.texts[window].length + self.texts[stream.stream].length
        if stream.source >= 0:
            self.name_bytes += self.texts[stream.source].length
            self.source[row] = stream.source
            self.row_mask[row] = 1 << HAS_SOURCE
        else:
            self.source[row] = 0
            self.row_mask[row] = 0
        for column in range(STATISTICS):
            self.statistic[column][row] = 0
        self.row_count += 1
        return row

    cdef Py_ssize_t _stream(self, Py_ssize_t at, bint comes_in, int32_t *number) except -2:
        """Read a key of a map; `number` says which stream it may be, and then which it is."""
        cdef Py_ssize_t start = at
        cdef int kind = 0, field = 0, seen = 0
        cdef int32_t source = -1, stream = 0
        cdef Stream *guess
        cdef uint64_t both
        cdef Slot *slot
        if number[0] < self.stream_count:
            guess = &self.streams[number[0]]
            if (
                (guess.source >= 0) == comes_in
                and guess.length <= self.end - at
                and memcmp(guess.written, self.data + at, guess.length) == 0
            ):
                return at + guess.length
        if comes_in:
            while True:
                at = self._field(at, &kind, &field)
                if at < 0:
                    return REFUSED
                if kind == 0:
                    break
                if field == 1 and kind == STRING:
                    at = self._text(at, -1, &source)
                    seen |= 1
                elif field == 2 and kind == STRING:
                    at = self._text(at, -1, &stream)
                    seen |= 2
                else:
                    at = self._skip(at, kind, MAX_DEPTH)
                if at < 0:
                    return REFUSED
            if seen != 3:
                return REFUSED
        else:
            at = self._text(at, -1, &stream)
            if at < 0:
                return REFUSED
        both = <uint64_t>(source + 1) << 32 | <uint64_t>stream
        slot = place_of(&self.stream_numbers, self.key[0], both)
        if slot.epoch == self.stream_numbers.epoch:
            number[0] = slot.value
            return at
        if self.stream_count == self.stream_room:
            grown(<void **>&self.streams, 2 * self.stream_room * sizeof(Stream))
            self.stream_room *= 2
        number[0] = self.stream_count
        guess = &self.streams[self.stream_count]
        guess.written = self.data + start
        guess.length = at - start
        guess.source = source
        guess.stream = stream
        put(&self.stream_numbers, self.key[0], slot, both, self.stream_count)
        self.stream_count += 1
        return at

    # ---- values ----

    cdef inline Py_ssize_t _field(self, Py_ssize_t at, int *kind, int *field) noexcept:
        """Read a field's type and number; type 0 is the end of a struct."""
        if at >= self.end:
            return REFUSED
        kind[0] = self.data[at]
        if kind[0] == 0:
            return at + 1
        if self.end - at < 3:
            return REFUSED
        field[0] = self.data[at + 1] << 8 | self.data[at + 2]
        return at + 3

    cdef inline Py_ssize_t _integer(self, Py_ssize_t at, int kind, int64_t *value) noexcept:
        if self.end - at < (4 if kind == I32 else 8):
            return REFUSED
        if kind == I32:
            value[0] = read_i32(self.data + at)
            return at + 4
        value[0] = read_i64(self.data + at)
        return at + 8

    cdef inline Py_ssize_t _map(self, Py_ssize_t at, int key, int value, int32_t *count) noexcept:
        if self.end - at < 6:
            return REFUSED
        count[0] = read_i32(self.data + at + 2)
        if count[0] and (self.data[at] != key or self.data[at + 1] != value):
            return REFUSED
        if count[0] < 0 or <int64_t>count[0] * (least(key) + least(value)) > self.end - at - 6:
            return REFUSED
        return at + 6

    cdef Py_ssize_t _text(self, Py_ssize_t at, int32_t guess, int32_t *number) except -2:
        cdef int64_t length
        cdef uint64_t hash, place
        cdef Text *text
        if self.end - at < 4:
            return REFUSED
        length = read_i32(self.data + at)
        at += 4
        if length < 0 or length > self.end - at:
            return REFUSED
        if 0 <= guess < self.text_count:
            text = &self.texts[guess]
            if text.length == length and same(self.pool + text.offset, self.data + at, length):
                number[0] = guess
                return at + length
        hash = siphash(self.key, self.data + at, length)
        place = hash & (self.text_size - 1)
        while self.text_slots[place] >= 0:
            text = &self.texts[self.text_slots[place]]
            if (
                text.hash == hash
                and text.length == length
                and same(self.pool + text.offset, self.data + at, length)
            ):
                number[0] = self.text_slots[place]
                return at + length
            place = (place + 1) & (self.text_size - 1)
        if not is_utf8(self.data + at, length):
            return REFUSED
        self._new_text(at, length, hash)
        number[0] = self.text_count - 1
        return at + length

    cdef int _new_text(self, Py_ssize_t at, int64_t length, uint64_t hash) except -1:
        cdef Text *text
        cdef int64_t room = self.pool_room
        cdef uint64_t place
        while room - self.pool_used < length:
            room *= 2
        if room > self.pool_room:
            self.pool = <char *>self._sized(POOL, room)
            self.pool_room = room
        if self.text_count == self.text_room:
            self._grow_texts(self.text_room * 2)
        text = &self.texts[self.text_count]
        memset(text, 0, sizeof(Text))
        text.offset = self.pool_used
        text.length = length
        text.hash = hash
        memcpy(self.pool + self.pool_used, self.data + at, length)
        self.pool_used += length
        place = hash & (self.text_size - 1)
        while self.text_slots[place] >= 0:
            place = (place + 1) & (self.text_size - 1)
        self.text_slots[place] = self.text_count
        self.text_count += 1
        return 0

    cdef Py_ssize_t _skip(self, Py_ssize_t at, int kind, int depth) noexcept:
        """Return the position after a value of an unknown field."""
        cdef int field = 0, inner = 0, other = 0
        cdef int64_t count
        if is_fixed(kind):
            return at + least(kind) if 0 < least(kind) <= self.end - at else REFUSED
        if kind == STRING:
            if self.end - at < 4:
                return REFUSED
            count = read_i32(self.data + at)
            return at + 4 + count if 0 <= count <= self.end - at - 4 else REFUSED
        if depth == 0:
            return REFUSED
        if kind == STRUCT:
            while True:
                at = self._field(at, &inner, &field)
                if at < 0 or inner == 0:
                    return at
                at = self._skip(at, inner, depth - 1)
                if at < 0:
                    return REFUSED
        if self.end - at < (6 if kind == MAP else 5):
            return REFUSED
        inner = self.data[at]
        if kind == MAP:
            at += 1
            other = self.data[at]
        count = read_i32(self.data + at + 1)
        at += 5
        if count == 0:
            return at
        if count < 0 or least(inner) == 0 or kind == MAP and least(other) == 0:
            return REFUSED
        if count * (least(inner) + least(other)) > self.end - at:
            return REFUSED
        if is_fixed(inner) and is_fixed(other):
            return at + count * (least(inner) + least(other))
        while count > 0:
            count -= 1
            at = self._skip(at, inner, depth - 1)
            if at >= 0 and kind == MAP:
                at = self._skip(at, other, depth - 1)
            if at < 0:
                return REFUSED
        return at
