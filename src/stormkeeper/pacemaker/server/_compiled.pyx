# cython: auto_pickle=False, language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled engine: twins of `pulse_index.PulseIndex` and `asyncio_channels.AsyncioChannels`.

A typed source for both engines is too slow when interpreted (bench/results/experiments.md). Tests
check that both give the same results and bytes. `channels` has the common rules; these hold here
only:

- An overwrite of an existing pulse and a GET_PULSE of an existing pulse, in the exact shapes, are
  answered without Python while the session's `writes_unasked` or `reads_unasked` is true. All other
  requests go to the session. A limit on the size of a pulse would have to be checked in `overwrite`.
- All channels share one input and one output buffer. A channel has memory of its own only for a
  partial frame, waiting requests, or answers that the client did not take.
- A large value is sent from the store without copying. A large value is received into its final
  memory if the client's last value had the same size, as uncompressed heartbeats have.
- A channel waits for input, or, with answers to send or requests to answer, for output; never for
  both.
- An event carries a descriptor's generation, so a late event of a closed channel cannot reach a new
  channel with the same descriptor.
- A descriptor is closed when its `_Channel` leaves the table, not by the garbage collector.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, nanosleep, timespec
from posix.unistd cimport close

import os
from collections import deque

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server import channels as rules
from stormkeeper.pacemaker.wire.decoder import bad_length

cdef extern from "<sys/socket.h>" nogil:
    int MSG_NOSIGNAL, SHUT_WR, SOL_SOCKET, SO_LINGER
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int shutdown(int fd, int how)
    int setsockopt(int fd, int level, int option, const void *value, uint32_t size)
    struct linger:
        int l_onoff
        int l_linger
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLOUT
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int poller, int operation, int fd, epoll_event *event)
    int epoll_wait(int poller, epoll_event *events, int size, int timeout_ms)

cdef Py_ssize_t READ_BYTES = rules.READ_BYTES
cdef Py_ssize_t ANSWER_BYTES = rules.ANSWER_BYTES
cdef int TURN_ROUNDS = rules.TURN_ROUNDS
cdef double TURN_SECONDS = rules.TURN_SECONDS
cdef double BATCH_SECONDS = rules.BATCH_SECONDS
cdef double LINGER = rules.LINGER
# Seconds after which `run` yields to the event loop.
cdef double RUN_SECONDS = 0.01
# Seconds for which `run` lets single requests gather, as each would cost a wake-up, unless a client
# of the batch was served in the last `HURRY_SECONDS`.
cdef double GATHER_SECONDS = 0.00025
cdef double HURRY_SECONDS = 0.05
# Seconds between two sweeps that mean a stop of the process.
cdef double STOPPED_SECONDS = 3.0

cdef enum:
    # Events taken from epoll at a time.
    EVENTS = 512
    # With fewer events at a time, `run` waits for more.
    FEW = 8
    # Rounds of the event loop without such a wait, after a wait in vain.
    LULL = 3
    # Batches served after a stop before timeouts apply.
    BATCHES = 64
    # Most buckets of the latency histogram.
    BUCKETS = 32
    # Least bytes of a value sent without copying, and most such values per send.
    LARGE = 8192
    VALUES = 16
    # Least bytes of a value received without copying.
    LARGE_STORED = 16384
    # Most bytes that the answers' buffer keeps after a large answer.
    SPARE_BYTES = 1048576
    # Message types, and the bound of types that are known to be short.
    SEND_PULSE = 4
    GET_PULSE = 10
    KINDS = 128
    # Bytes of a pulse's frame before the value, without the path, and after the value.
    BEFORE_VALUE = 31
    AFTER_VALUE = 10

cdef int BOUNDS = len(rules.LATENCY_BOUNDS)
cdef double[BUCKETS] BOUND
for _bucket, _bound in enumerate(rules.LATENCY_BOUNDS):
    BOUND[_bucket] = _bound
del _bucket, _bound

# Whether `TYPE` and this byte are one of `channels.SHORT`.
cdef bint[KINDS] IS_SHORT
for _kind in range(KINDS):
    IS_SHORT[_kind] = b"\x08\x00\x01\x00\x00\x00" + bytes([_kind]) in rules.SHORT
del _kind

# The exact shapes of wire.decoder: i32 type, struct data, then a path, or a pulse and its id.
cdef const char *TYPE = b"\x08\x00\x01\x00\x00\x00"
cdef const char *TO_PATH = b"\x0c\x00\x02\x0b\x00\x01"
cdef const char *TO_PULSE_ID = b"\x0c\x00\x02\x0c\x00\x02\x0b\x00\x01"
cdef const char *TO_DETAILS = b"\x0b\x00\x02"
cdef const char *AFTER_PATH = b"\x00\x08\x00\x03"
cdef const char *AFTER_PULSE = b"\x00\x00\x08\x00\x03"
cdef const char *ACKNOWLEDGEMENT = b"\x00\x00\x00\x0f\x08\x00\x01\x00\x00\x00\x05"
cdef const char *PULSE_ANSWER = b"\x08\x00\x01\x00\x00\x00\x0b\x0c\x00\x02\x0c\x00\x02\x0b\x00\x01"


# Lengths are i32 on the wire, but their sums need Py_ssize_t.
cdef inline Py_ssize_t read_i32(const char *at) noexcept nogil:
    cdef const unsigned char *raw = <const unsigned char *> at
    return <int32_t> (
        (<uint32_t> raw[0] << 24) | (<uint32_t> raw[1] << 16) | (<uint32_t> raw[2] << 8) | raw[3]
    )


cdef inline void write_i32(char *at, Py_ssize_t value) noexcept nogil:
    cdef uint32_t raw = <uint32_t> value
    at[0] = <char> (raw >> 24)
    at[1] = <char> (raw >> 16)
    at[2] = <char> (raw >> 8)
    at[3] = <char> raw


cdef inline double monotonic() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return time.tv_sec + time.tv_nsec * 1e-9


# --- the pulses


@cython.final
@cython.no_gc  # it holds bytes only
cdef class PulseEntry:
    """A path with a pulse or tombstone."""

    cdef readonly bytes path
    cdef readonly bytes details
    cdef readonly int64_t revision
    cdef readonly double changed
    # Neighbours in the order of revisions, without reference counts: the index holds every linked
    # entry, and freeing a long list does not recurse.
    cdef PyObject *older
    cdef PyObject *newer


@cython.final
@cython.no_gc
cdef class PulseIndex:
    """Entries by path, and sorted by revision; see `pulse_index.PulseIndex`."""

    cdef dict _entries
    cdef PyObject *_oldest
    cdef PyObject *_newest
    cdef readonly int64_t revision
    cdef readonly Py_ssize_t keys
    cdef readonly Py_ssize_t tombstones
    cdef readonly int64_t pulses_received
    cdef readonly int64_t bytes_held
    cdef public int64_t max_bytes

    def __cinit__(self):
        self._entries = {}

    def get(self, bytes path not None):
        cdef PyObject *found = PyDict_GetItem(self._entries, path)
        return None if found is NULL else (<PulseEntry> found).details

    def entry(self, bytes path not None):
        cdef PyObject *found = PyDict_GetItem(self._entries, path)
        return None if found is NULL else <PulseEntry> found

    def replace(self, bytes path not None, bytes details not None, double now):
        cdef PyObject *found = PyDict_GetItem(self._entries, path)
        return found is not NULL and self.overwrite(<PulseEntry> found, details, now)

    def add(self, bytes path not None, bytes details not None, double now):
        cdef PyObject *found = PyDict_GetItem(self._entries, path)
        cdef PulseEntry entry
        if found is NULL:
            entry = PulseEntry.__new__(PulseEntry)
            entry.path = path
            self._entries[path] = entry
        else:
            entry = <PulseEntry> found
            if entry.details is not None:
                raise ValueError(f"{path[:200]!r} holds a pulse already")
            self.tombstones -= 1
        entry.details = details
        self.keys += 1
        self.pulses_received += 1
        self.bytes_held += PyBytes_GET_SIZE(path) + PyBytes_GET_SIZE(details)
        entry.changed = now
        self._to_newest(entry)
        return entry

    def bury(self, PulseEntry entry not None, double now):
        if entry.details is None:
            raise ValueError(f"{entry.path[:200]!r} holds no pulse")
        self.bytes_held -= PyBytes_GET_SIZE(entry.path) + PyBytes_GET_SIZE(entry.details)
        self.keys -= 1
        self.tombstones += 1
        entry.details = None
        entry.changed = now
        self._to_newest(entry)

    def forget(self, PulseEntry entry not None):
        if entry.details is not None or self._entries.get(entry.path) is not entry:
            raise ValueError(f"{entry.path[:200]!r} holds no tombstone")
        self.tombstones -= 1
        entry.revision = 0
        self._unlink(entry)
        del self._entries[entry.path]

    def renew(self, PulseEntry entry not None):
        self._to_newest(entry)

    def since(self, int64_t revision, Py_ssize_t limit):
        # From both ends, so the cost is the distance from the nearer one.
        cdef PyObject *front = self._oldest
        cdef PyObject *back = self._newest
        while front is not NULL and (<PulseEntry> front).revision <= revision:
            if (<PulseEntry> back).revision <= revision:
                front = (<PulseEntry> back).newer
                break
            front = (<PulseEntry> front).newer
            back = (<PulseEntry> back).older
        return self._from(front, limit)

    def newer(self, PulseEntry entry not None, Py_ssize_t limit):
        return self._from(entry.newer, limit)

    def oldest(self):
        return None if self._oldest is NULL else <PulseEntry> self._oldest

    def after(self, PulseEntry entry not None):
        return None if entry.newer is NULL else <PulseEntry> entry.newer

    cdef bint overwrite(self, PulseEntry entry, bytes details, double now) noexcept:
        """Overwrite the pulse of an entry; see `replace`."""
        cdef Py_ssize_t more
        if entry.details is None:
            return False
        more = PyBytes_GET_SIZE(details) - PyBytes_GET_SIZE(entry.details)
        if more > 0 and self.max_bytes and self.bytes_held + more > self.max_bytes:
            return False
        self.bytes_held += more
        self.pulses_received += 1
        entry.details = details
        entry.changed = now
        self._to_newest(entry)
        return True

    cdef PulseEntry find(self, const char *path, Py_ssize_t size):
        """Return the entry of a path, or None."""
        cdef bytes key = PyBytes_FromStringAndSize(path, size)
        cdef PyObject *found = PyDict_GetItem(self._entries, key)
        return None if found is NULL else <PulseEntry> found

    cdef list _from(self, PyObject *at, Py_ssize_t limit):
        """Return `limit` entries from `at` on."""
        cdef list entries = []
        while at is not NULL and limit > 0:
            entries.append(<PulseEntry> at)
            at = (<PulseEntry> at).newer
            limit -= 1
        return entries

    cdef void _to_newest(self, PulseEntry entry) noexcept:
        cdef PyObject *at = <PyObject *> entry
        self.revision += 1
        entry.revision = self.revision
        if self._newest is at:
            return
        self._unlink(entry)
        entry.older = self._newest
        if self._newest is NULL:
            self._oldest = at
        else:
            (<PulseEntry> self._newest).newer = at
        self._newest = at

    cdef void _unlink(self, PulseEntry entry) noexcept:
        """Remove an entry from the order."""
        cdef PyObject *at = <PyObject *> entry
        if entry.older is not NULL:
            (<PulseEntry> entry.older).newer = entry.newer
        elif self._oldest is at:
            self._oldest = entry.newer
        if entry.newer is not NULL:
            (<PulseEntry> entry.newer).older = entry.older
        elif self._newest is at:
            self._newest = entry.older
        entry.older = entry.newer = NULL


# --- the channels


@cython.final
cdef class _Channel:
    """State of a connection between its turns."""

    cdef int fd
    cdef uint32_t generation
    cdef uint32_t interest
    cdef object session
    cdef bint reads_unasked
    cdef bint writes_unasked
    # Whether the session is over; the last answers may still be sent.
    cdef bint is_over
    cdef bint is_half_closed
    # Whether complete requests wait in `kept`.
    cdef bint has_unanswered
    # Whether the first of them may be long and waits in the queue.
    cdef bint is_queued
    # Unanswered input from `kept_begin` on: requests, and at the end a partial one.
    cdef char *kept
    cdef Py_ssize_t kept_begin
    cdef Py_ssize_t kept_size
    cdef Py_ssize_t kept_capacity
    # Bytes of the complete frame of a partial request; 4 while unknown.
    cdef Py_ssize_t frame_size
    # Answers that the client has not taken.
    cdef char *unsent
    cdef Py_ssize_t unsent_begin
    cdef Py_ssize_t unsent_size
    # Clock seconds: since when a frame is incomplete and answers are unread, and when a channel is
    # closed after the end of its session.
    cdef double frame_since
    cdef double unsent_since
    cdef double closes_at
    # Bytes of this channel in the total `_buffered`.
    cdef Py_ssize_t counted
    # Clock of the last turn.
    cdef double served_at
    # Monotonic time since when requests wait for another turn; 0 if none.
    cdef double waits_since
    # Entry of the last request: a worker's next request is for the same.
    cdef PulseEntry last
    # Expected size of the next frame's large value (0: none), and the bytes before the value.
    cdef Py_ssize_t value_size
    cdef Py_ssize_t value_at

    def __dealloc__(self):
        free(self.kept)
        free(self.unsent)
        if self.fd > 0:
            close(self.fd)

    cdef int keep(self, const char *data, Py_ssize_t size) except -1:
        """Append to `kept`. Memory grows with received bytes, by doubling."""
        cdef Py_ssize_t capacity = self.kept_size + size
        cdef char *grown
        if capacity > self.kept_capacity:
            capacity = max(capacity, min(2 * self.kept_capacity, self.frame_size))
            grown = <char *> realloc(self.kept, capacity)
            if grown is NULL:
                raise MemoryError
            self.kept = grown
            self.kept_capacity = capacity
        memcpy(self.kept + self.kept_size, data, size)
        self.kept_size += size
        return 0

    cdef void drop_kept(self) noexcept:
        free(self.kept)
        self.kept = NULL
        self.kept_begin = self.kept_size = self.kept_capacity = 0
        self.has_unanswered = False
        self.frame_since = 0

    cdef void drop_unsent(self) noexcept:
        free(self.unsent)
        self.unsent = NULL
        self.unsent_begin = self.unsent_size = 0


cdef class EpollChannels:
    """Channels on an epoll whose descriptor the event loop watches."""

    cdef PulseIndex _index
    cdef object _clock
    cdef object _on_closed
    cdef object _on_freed
    cdef public Py_ssize_t max_size
    cdef public double frame_timeout
    cdef public double output_timeout
    cdef public int64_t max_buffered
    # Bytes of unanswered requests and unread answers of all channels.
    cdef int64_t _buffered
    cdef int _poller
    cdef epoll_event[EVENTS] _events
    # Number of events, and index of the next one.
    cdef int _batch
    cdef int _next
    # `_Channel` or None by descriptor.
    cdef list _table
    cdef Py_ssize_t _open
    cdef uint32_t _generation
    cdef bint _is_draining
    cdef int _lull
    # Channels whose next request may be long, and whether such a turn runs.
    cdef object _queue
    cdef bint _may_be_long
    # Whether a turn of the batch left requests unanswered.
    cdef bint _is_cut
    # Whether a client of the last batch had been served just before.
    cdef bint _is_hurried
    # The clock at the last sweep.
    cdef double _swept
    # Buffers of a turn: input and answers.
    cdef char *_input
    cdef char *_answers
    cdef Py_ssize_t _answers_size
    cdef Py_ssize_t _answers_capacity
    # Memory for an expected value, and whether the value was read into it: then its place in the
    # input is unused. Nothing else refers to the memory until the complete value is stored.
    cdef bytes _foreseen
    cdef bint _is_apart
    # Large values among the answers: references, positions in the buffer, sum of sizes.
    cdef PyObject *_values[VALUES]
    cdef Py_ssize_t[VALUES] _value_at
    cdef int _value_count
    cdef Py_ssize_t _values_size
    # Clock at the start of the batch; monotonic start and end of the turn.
    cdef double _now
    cdef double _turn_begins
    cdef double _turn_ends
    cdef int64_t _sends
    cdef int64_t _gets
    cdef int64_t _others
    cdef int64_t _bytes_in
    cdef int64_t _bytes_out
    cdef int64_t[BUCKETS] _buckets
    cdef double _seconds
    # Requests of the batch that waited and are already in the histogram.
    cdef int64_t _waited

    def __cinit__(
        self,
        PulseIndex index not None,
        *,
        Py_ssize_t max_size,
        clock,
        double frame_timeout,
        double output_timeout,
        on_closed,
        on_freed,
    ):
        self._index = index
        self._clock = clock
        self._on_closed = on_closed
        self._on_freed = on_freed
        self._queue = deque()
        self.max_size = max_size
        self.frame_timeout = frame_timeout
        self.output_timeout = output_timeout
        self._table = []
        self._input = <char *> malloc(READ_BYTES)
        self._answers_capacity = ANSWER_BYTES
        self._answers = <char *> malloc(ANSWER_BYTES)
        if self._input is NULL or self._answers is NULL:
            raise MemoryError
        self._poller = epoll_create1(EPOLL_CLOEXEC)
        if self._poller < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        self._drop_values()
        free(self._input)
        free(self._answers)
        if self._poller > 0:
            close(self._poller)

    def __len__(self):
        return self._open

    def attach(self, loop):
        """Make an event loop call `run`."""
        loop.add_reader(self._poller, self.run)

    def detach(self, loop):
        """Undo `attach`."""
        loop.remove_reader(self._poller)

    def counters(self):
        return {
            "sends": self._sends,
            "gets": self._gets,
            "others": self._others,
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
        }

    def latency(self):
        return rules.LATENCY_BOUNDS, [self._buckets[n] for n in range(BOUNDS + 1)], self._seconds

    # --- interface

    def adopt(self, connection, session, double now):
        cdef _Channel channel = _Channel.__new__(_Channel)
        cdef epoll_event event
        rules.prepare(connection)
        channel.fd = connection.detach()
        channel.session = session
        channel.reads_unasked = session.reads_unasked
        channel.writes_unasked = session.writes_unasked
        self._generation += 1
        channel.generation = self._generation
        channel.frame_size = 4
        channel.interest = EPOLLIN
        event.events = EPOLLIN
        event.data.u64 = (<uint64_t> channel.generation << 32) | <uint32_t> channel.fd
        if epoll_ctl(self._poller, EPOLL_CTL_ADD, channel.fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))  # the channel closes it as it goes
        while len(self._table) <= channel.fd:
            self._table.append(None)
        self._table[channel.fd] = channel
        self._open += 1
        if self._is_draining:
            self._now = now
            self._rest(channel)

    def run(self):
        """Serve the ready channels.

        A round of the event loop costs as much as several requests. Under load, if more events come
        within a millisecond, the loop waits up to `RUN_SECONDS` for its timers and connections.

        Workers of a large cluster send single pulses, thousands per second, without hurry: these
        gather for `GATHER_SECONDS`, unless a client of the batch asks again at once.
        """
        cdef double ends = monotonic() + RUN_SECONDS
        cdef double began
        cdef bint gathers = False
        cdef timespec rest
        if self._lull:
            self._lull -= 1
            ends = 0
        if self._next >= self._batch:
            self._next = 0
            self._batch = epoll_wait(self._poller, self._events, EVENTS, 0)
        while self._next < self._batch:
            self._serve()
            if self._next < self._batch or monotonic() > ends:
                return
            gathers = gathers and self._batch <= FEW and not self._is_hurried
            self._next = 0
            with nogil:
                if gathers:
                    rest.tv_sec = 0
                    rest.tv_nsec = <long> (GATHER_SECONDS * 1e9)
                    nanosleep(&rest, NULL)
                began = monotonic()
                self._batch = epoll_wait(self._poller, self._events, EVENTS, 1)
            # Earlier events would have been gathered.
            gathers = monotonic() - began < GATHER_SECONDS
            if self._batch == 0:
                self._lull = LULL

    def sweep(self, double now):
        cdef _Channel channel
        cdef int batch
        if now - self._swept > STOPPED_SECONDS:
            # This process was stopped, so clients are not late.
            for batch in range(BATCHES):
                while self._next < self._batch:
                    self._serve()
                self._next = 0
                self._batch = epoll_wait(self._poller, self._events, EVENTS, 0)
                if self._batch <= 0:
                    break
            while self._next < self._batch:
                self._serve()
        self._now = self._swept = now
        for slot in list(self._table):
            if slot is None:
                continue
            channel = slot
            if channel.fd < 0:
                continue
            if channel.is_over:
                if now >= channel.closes_at:
                    self._close(channel)
                continue
            session = channel.session
            overdue = session.handshake_due(now)
            channel.reads_unasked = session.reads_unasked
            channel.writes_unasked = session.writes_unasked
            if overdue is not None:
                self._end(channel, rules.HANDSHAKE_TIMEOUT, overdue)
                self._rest(channel)
            elif channel.is_queued:
                continue  # it is the client who waits
            elif self._is_overdue(channel):
                if channel.interest == EPOLLOUT:
                    overdue = rules.unread_answers(now - channel.unsent_since)
                    self._end(channel, rules.OUTPUT_TIMEOUT, overdue)
                    self._reset(channel)
                else:
                    overdue = rules.unfinished_frame(now - channel.frame_since)
                    self._end(channel, rules.FRAME_TIMEOUT, overdue)
                    self._rest(channel)
        if self._queue:
            # The sockets of all queued channels may be full, without any event.
            self._serve()

    cdef bint _is_overdue(self, _Channel channel) noexcept:
        """Return whether a client has exceeded a timeout."""
        if channel.interest == EPOLLOUT:
            return self._now - channel.unsent_since > self.output_timeout
        return channel.frame_since != 0 and self._now - channel.frame_since > self.frame_timeout

    def drain(self):
        cdef _Channel channel
        self._now = self._clock()
        for is_last_look in (False, True):
            self._is_draining = is_last_look
            for slot in list(self._table):
                if slot is not None:
                    channel = slot
                    if channel.fd >= 0:
                        self._turn_begins = monotonic()
                        self._turn(channel)
        self._rest_queue()

    def abort(self):
        cdef _Channel channel
        for slot in list(self._table):
            if slot is not None:
                channel = slot
                if channel.fd >= 0:
                    self._end(channel, rules.DRAIN, rules.STOPPING)
                    self._reset(channel)

    # --- batches and turns

    cdef int _serve(self) except -1:
        """Give each channel of a batch a turn, and measure the time.

        Those for which `BATCH_SECONDS` are too short are left for the next call.
        """
        cdef int fd
        cdef int64_t requests = self._sends + self._gets + self._others
        cdef uint64_t key
        cdef _Channel channel
        cdef double began = monotonic()
        self._now = self._clock()
        self._turn_begins = began
        self._is_hurried = False
        self._waited = 0
        while self._next < self._batch:
            key = self._events[self._next].data.u64
            self._next += 1
            fd = <int> (key & 0xFFFFFFFFU)
            slot = self._table[fd]
            if slot is None:
                continue
            channel = <_Channel> slot
            if channel.generation == <uint32_t> (key >> 32) and not channel.is_queued:
                if self._now - channel.served_at < HURRY_SECONDS:
                    self._is_hurried = True
                channel.served_at = self._now
                self._turn(channel)
                self._turn_begins = monotonic()
                if self._turn_begins - began > BATCH_SECONDS:
                    break
        if self._queue:
            if self._next >= self._batch:
                self._serve_queue()
            self._rest_queue()
        if self._is_cut or self._queue:
            self._is_cut = False
            sched_yield()
        requests = self._sends + self._gets + self._others - requests
        self._count_latency(requests - self._waited, self._turn_begins - began)
        if self._answers_capacity > SPARE_BYTES:
            free(self._answers)
            self._answers_capacity = ANSWER_BYTES
            self._answers = <char *> malloc(ANSWER_BYTES)
            if self._answers is NULL:
                self._answers_capacity = 0
        return 0

    cdef void _count_latency(self, int64_t requests, double seconds) noexcept:
        cdef int n = 0
        if requests:
            while n < BOUNDS and seconds > BOUND[n]:
                n += 1
            self._buckets[n] += requests
            self._seconds += requests * seconds

    cdef int _serve_queue(self) except -1:
        """Give turns for long requests for a moment, at least one."""
        cdef double ends = self._turn_begins + TURN_SECONDS
        cdef Py_ssize_t n
        cdef _Channel channel
        for n in range(len(self._queue)):
            channel = <_Channel> self._queue.popleft()
            channel.is_queued = False
            if channel.fd >= 0:
                self._may_be_long = True
                self._turn(channel)
                self._may_be_long = False
                self._turn_begins = monotonic()
                if self._turn_begins > ends:
                    break
        return 0

    cdef int _rest_queue(self) except -1:
        """Make epoll wake the loop for the queue."""
        cdef _Channel channel
        for item in self._queue:
            channel = <_Channel> item
            if channel.fd >= 0 and channel.interest != EPOLLOUT:
                self._rest(channel)
        return 0

    cdef int _turn(self, _Channel channel) except -1:
        """Give a channel a turn: send, answer, read; then wait for input or output."""
        cdef int64_t requests
        cdef bint lives
        try:
            if channel.waits_since:
                requests = self._sends + self._gets + self._others
                lives = self._advance(channel)
                requests = self._sends + self._gets + self._others - requests
                self._count_latency(requests, monotonic() - channel.waits_since)
                self._waited += requests
            else:
                lives = self._advance(channel)
            if not channel.has_unanswered or channel.unsent_size:
                # A client that does not read causes its own wait.
                channel.waits_since = 0
            elif not channel.waits_since:
                channel.waits_since = self._turn_begins
            if lives:
                self._count_held(channel)
                if (
                    channel.counted > READ_BYTES
                    and 0 < self.max_buffered < self._buffered
                    and not channel.is_over
                ):
                    self._end(channel, rules.MEMORY, rules.too_much_held(channel.counted))
                    self._reset(channel)
                elif not channel.is_queued:
                    self._rest(channel)
            else:
                self._close(channel)
        except Exception:
            rules.log_error_of_ours(channel.session)
            self._end(channel, rules.ERROR, rules.AN_ERROR_OF_OURS)
            self._close(channel)
        return 0

    cdef int _count_held(self, _Channel channel) except -1:
        # Memory of answers is freed only when the client has taken all of them.
        cdef Py_ssize_t held = channel.kept_capacity + channel.unsent_begin + channel.unsent_size
        self._buffered += held - channel.counted
        channel.counted = held
        return 0

    cdef bint _advance(self, _Channel channel) except -1:
        """Do the work of a turn; return whether the connection goes on."""
        cdef Py_ssize_t size
        cdef int rounds = 0
        self._turn_ends = self._turn_begins + TURN_SECONDS
        self._answers_size = 0
        self._drop_values()
        if channel.unsent_size:
            if not self._send_unsent(channel):
                return False
            if channel.unsent_size:
                return True
        if not channel.has_unanswered:
            if (channel.is_over or self._is_draining) and not channel.is_half_closed:
                return True
            size = self._read(channel)
            if size <= 0:
                return size < 0
            if channel.is_over:
                return True  # what comes now is dropped
            self._receive(channel, self._input, size)
            if not self._send_answers(channel):
                return False
            rounds = 1
        if channel.is_queued:
            return True
        while channel.has_unanswered and not channel.unsent_size and rounds < TURN_ROUNDS:
            self._answer_kept(channel)
            if not self._send_answers(channel):
                return False
            rounds += 1
            if channel.is_queued or monotonic() > self._turn_ends:
                break
        if channel.has_unanswered and not channel.unsent_size:
            self._is_cut = True
        return True

    cdef int _rest(self, _Channel channel) except -1:
        """Make epoll report when the channel can continue."""
        cdef epoll_event event
        cdef uint32_t interest = EPOLLIN
        if channel.unsent_size or channel.has_unanswered:
            interest = EPOLLOUT
            if not channel.unsent_size:
                # The kernel took the last answers and may have no room for more.
                channel.unsent_since = self._now
        elif channel.is_half_closed:
            pass
        elif channel.is_over or self._is_draining:
            self._end(channel, rules.DRAIN, rules.STOPPING)
            channel.is_half_closed = True
            channel.drop_kept()
            shutdown(channel.fd, SHUT_WR)
        if interest != channel.interest:
            channel.interest = interest
            event.events = interest
            event.data.u64 = (<uint64_t> channel.generation << 32) | <uint32_t> channel.fd
            epoll_ctl(self._poller, EPOLL_CTL_MOD, channel.fd, &event)
        return 0

    cdef int _end(self, _Channel channel, str cause, str reason) except -1:
        """Call `on_closed`, once; the last answers may still be sent."""
        if channel.is_over:
            return 0
        channel.is_over = True
        channel.drop_kept()
        # A draining server aborts the channel itself.
        channel.closes_at = INFINITY if cause is rules.DRAIN else self._now + LINGER
        try:
            self._on_closed(channel.session, cause, reason)
        except Exception:
            rules.log_error_of_ours(channel.session)
        return 0

    cdef int _reset(self, _Channel channel) except -1:
        """Close a channel at once, with a reset that drops unread answers."""
        cdef linger at_once
        at_once.l_onoff = 1
        at_once.l_linger = 0
        if channel.fd >= 0:
            setsockopt(channel.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once))
        return self._close(channel)

    cdef int _close(self, _Channel channel) except -1:
        cdef int fd = channel.fd
        if fd < 0:
            return 0
        self._end(channel, rules.BY_CLIENT, rules.CLOSED_BY_CLIENT)
        channel.fd = -1
        channel.drop_kept()
        channel.drop_unsent()
        self._count_held(channel)
        # Explicitly, as a descriptor inherited by another process would keep the registration.
        epoll_ctl(self._poller, EPOLL_CTL_DEL, fd, NULL)
        close(fd)
        session, channel.session = channel.session, None
        self._table[fd] = None
        self._open -= 1
        self._on_freed(session)
        return 0

    # --- input

    cdef Py_ssize_t _read(self, _Channel channel) except -2:
        """Read; return the number of bytes, -1 for none now, 0 at the end."""
        cdef ssize_t size
        self._is_apart = channel.value_size and not channel.kept_size and not channel.is_over
        while True:
            if self._is_apart:
                size = self._read_apart(channel)
            else:
                size = recv(channel.fd, self._input, READ_BYTES, 0)
            if size > 0:
                self._bytes_in += size
                return size
            if size == 0:
                self._end(
                    channel,
                    rules.BY_CLIENT,
                    rules.CLOSED_WITHIN_A_MESSAGE if channel.kept_size else rules.CLOSED_BY_CLIENT,
                )
                return 0
            if errno == EAGAIN:
                return -1
            if errno != EINTR:
                self._end(channel, rules.BY_CLIENT, rules.RESET_BY_CLIENT)
                return 0

    cdef ssize_t _read_apart(self, _Channel channel) except -2:
        """Read with an expected value into its final memory."""
        cdef iovec[3] pieces
        cdef msghdr message
        cdef Py_ssize_t ends = channel.value_at + channel.value_size
        if self._foreseen is None or PyBytes_GET_SIZE(self._foreseen) != channel.value_size:
            self._foreseen = PyBytes_FromStringAndSize(NULL, channel.value_size)
        pieces[0].iov_base = self._input
        pieces[0].iov_len = channel.value_at
        pieces[1].iov_base = PyBytes_AS_STRING(self._foreseen)
        pieces[1].iov_len = channel.value_size
        pieces[2].iov_base = self._input + ends
        pieces[2].iov_len = READ_BYTES - ends
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        message.msg_iovlen = 3
        return recvmsg(channel.fd, &message, 0)

    cdef Py_ssize_t _store_apart(self, _Channel channel, Py_ssize_t size) except -1:
        """Store an expected value, if complete; return the bytes of its frame.

        What came instead is put in its place in the input, and 0 is returned.
        """
        cdef Py_ssize_t begins = channel.value_at
        cdef Py_ssize_t value_size = channel.value_size
        cdef Py_ssize_t frame_size = begins + value_size + AFTER_VALUE
        cdef char *frame = self._input + 4
        if (
            size >= frame_size
            and read_i32(self._input) == frame_size - 4
            and frame_size - 4 <= self.max_size
            and memcmp(frame, TYPE, 6) == 0
            and frame[6] == SEND_PULSE
            and read_i32(frame + 16) == begins - BEFORE_VALUE
            and channel.writes_unasked
            and self._store_exact_shape(channel, frame, frame_size - 4, self._foreseen)
        ):
            self._foreseen = None
            self._sends += 1
            return frame_size
        if size > begins:
            memcpy(
                self._input + begins,
                PyBytes_AS_STRING(self._foreseen),
                min(size - begins, value_size),
            )
        return 0

    cdef int _receive(self, _Channel channel, const char *data, Py_ssize_t size) except -1:
        """Answer complete frames, and keep the rest."""
        cdef Py_ssize_t pos = 0
        if self._is_apart:
            pos = self._store_apart(channel, size)
        if channel.kept_size:
            pos = self._complete_kept(channel, data, size)
        if pos < size and not channel.is_over:
            pos += self._answer_frames(channel, data + pos, size - pos)
            if pos < size and not channel.is_over:
                channel.keep(data + pos, size - pos)
                channel.frame_since = self._now
        if size != channel.value_at + channel.value_size + AFTER_VALUE:
            channel.value_size = 0  # of a client that sends several at a time, or one in pieces
        return 0

    cdef Py_ssize_t _complete_kept(
        self, _Channel channel, const char *data, Py_ssize_t size
    ) except -1:
        """Complete the partial frame; return the number of used bytes."""
        cdef Py_ssize_t pos = 0
        cdef Py_ssize_t piece
        cdef bint had_length
        while True:
            had_length = channel.kept_size >= 4
            piece = min(channel.frame_size - channel.kept_size, size - pos)
            channel.keep(data + pos, piece)
            pos += piece
            if channel.kept_size < channel.frame_size:
                return pos
            if not had_length:
                if not self._is_allowed(channel, read_i32(channel.kept)):
                    return pos
                channel.frame_size = 4 + read_i32(channel.kept)
                if channel.frame_size > 4:
                    continue
            if self._answer(channel, channel.kept + 4, channel.frame_size - 4):
                channel.drop_kept()
            else:
                channel.keep(data + pos, size - pos)
                pos = size
                self._queue_up(channel)
            return pos

    cdef int _answer_kept(self, _Channel channel) except -1:
        """Answer waiting requests."""
        cdef Py_ssize_t begin = channel.kept_begin
        channel.has_unanswered = False
        channel.kept_begin += self._answer_frames(
            channel, channel.kept + begin, channel.kept_size - begin
        )
        if channel.is_over:
            channel.drop_kept()
        if channel.has_unanswered or channel.is_over:
            return 0
        cdef Py_ssize_t rest = channel.kept_size - channel.kept_begin
        cdef char *kept = channel.kept
        begin = channel.kept_begin
        # A partial frame is left: move it to memory of its size.
        channel.kept = NULL
        channel.drop_kept()
        if rest:
            try:
                channel.keep(kept + begin, rest)
                channel.frame_since = self._now
            finally:
                free(kept)
        else:
            free(kept)
        return 0

    cdef Py_ssize_t _answer_frames(
        self, _Channel channel, const char *data, Py_ssize_t size
    ) except -1:
        """Answer complete frames until the turn is over; return the number of used bytes.

        What is left is a part of a frame of `frame_size`, or requests, `has_unanswered`.
        """
        cdef Py_ssize_t pos = 0
        cdef Py_ssize_t length
        channel.frame_size = 4
        while size - pos >= 4 and not channel.is_over:
            length = read_i32(data + pos)
            if 0 <= length <= self.max_size and size - pos - 4 < length:
                channel.frame_size = 4 + length
                break
            if (
                self._answers_size + self._values_size >= ANSWER_BYTES
                or self._turn_ends == 0
            ):
                channel.has_unanswered = True
                break
            if not self._is_allowed(channel, length):
                break
            if not self._answer(channel, data + pos + 4, length):
                self._queue_up(channel)
                break
            pos += 4 + length
        return pos

    cdef int _queue_up(self, _Channel channel) except -1:
        """Queue a channel for a long request."""
        channel.has_unanswered = channel.is_queued = True
        self._queue.append(channel)
        return 0

    cdef bint _is_allowed(self, _Channel channel, Py_ssize_t length) except -1:
        if 0 <= length <= self.max_size:
            return True
        self._end(channel, rules.PROTOCOL, str(bad_length(length, self.max_size)))
        return False

    # --- requests

    cdef bint _answer(self, _Channel channel, const char *frame, Py_ssize_t size) except -1:
        """Answer a request; False if it must wait or needs another turn."""
        # Unknown type: the request may be long.
        cdef int kind = -1
        if size >= 7 and memcmp(frame, TYPE, 6) == 0:
            kind = frame[6]
        if kind == SEND_PULSE:
            if channel.writes_unasked and self._store_exact_shape(channel, frame, size, None):
                self._sends += 1
                return True
        elif kind == GET_PULSE:
            if channel.reads_unasked and self._fetch_exact_shape(channel, frame, size):
                self._gets += 1
                return True
        elif not self._may_be_long and not (0 <= kind < KINDS and IS_SHORT[kind]):
            return False
        if not self._answer_by_session(channel, frame, size):
            return False
        if kind == SEND_PULSE:
            self._sends += 1
        elif kind == GET_PULSE:
            self._gets += 1
        else:
            self._others += 1
        return True

    cdef PulseEntry _entry_of(self, _Channel channel, const char *path, Py_ssize_t size):
        """Return the entry of a path with a pulse, or None."""
        cdef PulseEntry entry = channel.last
        # An entry with a pulse is always in the index.
        if (
            entry is None
            or entry.details is None
            or PyBytes_GET_SIZE(entry.path) != size
            or memcmp(PyBytes_AS_STRING(entry.path), path, size) != 0
        ):
            entry = self._index.find(path, size)
            if entry is None or entry.details is None:
                return None
            channel.last = entry
        return entry

    cdef bint _store_exact_shape(
        self, _Channel channel, const char *frame, Py_ssize_t size, bytes apart
    ) except -1:
        """Overwrite a pulse; return whether the request had the exact shape and was done.

        Its value is in the frame, or, if it was read apart, in memory of its own.
        """
        cdef Py_ssize_t path_size, details_size, size_before
        cdef const char *after_path
        cdef char *answer
        cdef PulseEntry entry
        # The least sizes: an empty path, empty details.
        if size < 37 or memcmp(frame + 7, TO_PULSE_ID, 9) != 0:
            return False
        path_size = read_i32(frame + 16)
        if not 0 <= path_size <= size - 37:
            return False
        after_path = frame + 20 + path_size
        details_size = read_i32(after_path + 3)
        if (
            details_size != size - 37 - path_size
            or memcmp(after_path, TO_DETAILS, 3) != 0
            or memcmp(after_path + 7 + details_size, AFTER_PULSE, 5) != 0
            or frame[size - 1] != 0
        ):
            return False
        answer = self._room(19)
        entry = self._entry_of(channel, frame + 20, path_size)
        if entry is None:
            return False
        size_before = PyBytes_GET_SIZE(entry.details)
        if apart is None:
            apart = PyBytes_FromStringAndSize(after_path + 7, details_size)
        if not self._index.overwrite(entry, apart, self._now):
            return False
        channel.value_at = BEFORE_VALUE + path_size
        channel.value_size = 0
        if (
            details_size >= LARGE_STORED
            and details_size == size_before
            and channel.value_at + details_size + AFTER_VALUE <= READ_BYTES
        ):
            channel.value_size = details_size
        memcpy(answer, ACKNOWLEDGEMENT, 11)
        memcpy(answer + 11, frame + size - 8, 8)  # the message id, and the end
        self._answers_size += 19
        return True

    cdef bint _fetch_exact_shape(
        self, _Channel channel, const char *frame, Py_ssize_t size
    ) except -1:
        """Answer GET_PULSE; return whether the request had the exact shape and was done."""
        cdef Py_ssize_t path_size, details_size, answer_size
        cdef PulseEntry entry
        cdef char *answer
        cdef bint is_copied
        # The least size: an empty path.
        if size < 26 or memcmp(frame + 7, TO_PATH, 6) != 0:
            return False
        path_size = read_i32(frame + 13)
        if (
            path_size != size - 26
            or memcmp(frame + 17 + path_size, AFTER_PATH, 4) != 0
            or frame[size - 1] != 0
        ):
            return False
        entry = self._entry_of(channel, frame + 17, path_size)
        if entry is None:
            return False
        details_size = PyBytes_GET_SIZE(entry.details)
        answer_size = 37 + path_size + details_size
        if answer_size > self.max_size:
            return False
        is_copied = details_size < LARGE or self._value_count == VALUES
        answer = self._room(4 + answer_size - (0 if is_copied else details_size))
        write_i32(answer, answer_size)
        memcpy(answer + 4, PULSE_ANSWER, 16)
        memcpy(answer + 20, frame + 13, 4 + path_size)
        answer += 24 + path_size
        memcpy(answer, TO_DETAILS, 3)
        write_i32(answer + 3, details_size)
        answer += 7
        self._answers_size += 4 + answer_size
        if is_copied:
            memcpy(answer, PyBytes_AS_STRING(entry.details), details_size)
            answer += details_size
        else:
            Py_INCREF(entry.details)
            self._answers_size -= details_size
            self._values[self._value_count] = <PyObject *> entry.details
            self._value_at[self._value_count] = self._answers_size - 10
            self._value_count += 1
            self._values_size += details_size
        answer[0] = answer[1] = 0
        memcpy(answer + 2, frame + size - 8, 8)  # the message id, and the end
        return True

    cdef bint _answer_by_session(
        self, _Channel channel, const char *frame, Py_ssize_t size
    ) except -1:
        """Let the session answer a request; False if it needs another turn."""
        session = channel.session
        cdef bytes answer
        try:
            answer = session.answer(PyBytes_FromStringAndSize(frame, size))
        except RemoteProtocolError as fault:
            self._end(channel, rules.PROTOCOL, str(fault))
            return True
        if answer is None:
            return False
        size = PyBytes_GET_SIZE(answer)
        memcpy(self._room(size), PyBytes_AS_STRING(answer), size)
        self._answers_size += size
        channel.reads_unasked = session.reads_unasked
        channel.writes_unasked = session.writes_unasked
        if session.fault is not None:
            self._end(channel, rules.AUTHENTICATION, session.fault)
        if monotonic() > self._turn_ends:
            self._turn_ends = 0  # at the next frame
        return True

    # --- output

    cdef char *_room(self, Py_ssize_t size) except NULL:
        """Return room for the next answer."""
        cdef Py_ssize_t capacity = self._answers_size + size
        cdef char *grown
        if capacity > self._answers_capacity:
            capacity += capacity // 2
            grown = <char *> realloc(self._answers, capacity)
            if grown is NULL:
                raise MemoryError
            self._answers = grown
            self._answers_capacity = capacity
        return self._answers + self._answers_size

    cdef bint _send_answers(self, _Channel channel) except -1:
        """Send the turn's answers, and keep the rest; False if the client is gone."""
        cdef Py_ssize_t size = self._answers_size
        cdef Py_ssize_t sent
        cdef char *rest
        if size == 0:
            return True
        if self._value_count:
            return self._send_with_values(channel)
        self._answers_size = 0
        sent = self._send(channel, self._answers, size)
        if sent < 0:
            return False
        if sent < size:
            rest = self._lay_by(channel, size - sent)
            memcpy(rest, self._answers + sent, size - sent)
        return True

    cdef bint _send_with_values(self, _Channel channel) except -1:
        """Send answers with large values; see `_send_answers`."""
        cdef iovec[2 * VALUES + 1] pieces
        cdef msghdr message
        cdef int count = 0
        cdef int n
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t size = self._answers_size + self._values_size
        cdef Py_ssize_t sent, piece
        cdef char *rest
        for n in range(self._value_count):
            pieces[count].iov_base = self._answers + at
            pieces[count].iov_len = self._value_at[n] - at
            pieces[count + 1].iov_base = PyBytes_AS_STRING(<bytes> self._values[n])
            pieces[count + 1].iov_len = PyBytes_GET_SIZE(<bytes> self._values[n])
            at = self._value_at[n]
            count += 2
        pieces[count].iov_base = self._answers + at
        pieces[count].iov_len = self._answers_size - at
        count += 1
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        message.msg_iovlen = count
        self._answers_size = 0
        while True:
            sent = sendmsg(channel.fd, &message, MSG_NOSIGNAL)
            if sent >= 0 or errno != EINTR:
                break
        sent = self._has_sent(channel, sent)
        if 0 <= sent < size:
            rest = self._lay_by(channel, size - sent)
            for n in range(count):
                piece = pieces[n].iov_len
                if sent < piece:
                    memcpy(rest, <char *> pieces[n].iov_base + sent, piece - sent)
                    rest += piece - sent
                    sent = 0
                else:
                    sent -= piece
            sent = 0
        self._drop_values()
        return sent >= 0

    cdef char *_lay_by(self, _Channel channel, Py_ssize_t size) except NULL:
        """Return memory for answers that the client did not take."""
        channel.unsent = <char *> malloc(size)
        if channel.unsent is NULL:
            raise MemoryError
        channel.unsent_begin = 0
        channel.unsent_size = size
        channel.unsent_since = self._now
        return channel.unsent

    cdef void _drop_values(self) noexcept:
        while self._value_count:
            self._value_count -= 1
            Py_XDECREF(self._values[self._value_count])
        self._values_size = 0

    cdef bint _send_unsent(self, _Channel channel) except -1:
        """Send kept answers; False if the client is gone."""
        cdef Py_ssize_t sent = self._send(
            channel, channel.unsent + channel.unsent_begin, channel.unsent_size
        )
        if sent < 0:
            return False
        channel.unsent_begin += sent
        channel.unsent_size -= sent
        if sent:
            channel.unsent_since = self._now
        if channel.unsent_size == 0:
            channel.drop_unsent()
            # The client could not complete its frame while the server did not read.
            if channel.frame_since:
                channel.frame_since = self._now
        return True

    cdef Py_ssize_t _send(self, _Channel channel, const char *data, Py_ssize_t size) except -2:
        """Send; return the number of bytes taken, -1 if the client is gone."""
        cdef ssize_t sent
        while True:
            sent = send(channel.fd, data, size, MSG_NOSIGNAL)
            if sent >= 0 or errno != EINTR:
                return self._has_sent(channel, sent)

    cdef Py_ssize_t _has_sent(self, _Channel channel, Py_ssize_t sent) except -2:
        """Count sent bytes; return as `_send` does."""
        if sent >= 0:
            self._bytes_out += sent
            return sent
        if errno == EAGAIN:
            return 0
        self._end(channel, rules.BY_CLIENT, rules.RESET_BY_CLIENT)
        return -1
