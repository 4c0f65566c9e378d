# SPDX-License-Identifier: Apache-2.0
"""The run folder: what the hook writes and the doctor reads. Both sides take their numbers from here.

    RUN/settings.json              written by the doctor before the command starts
    RUN/PID-START.ring             one process's records, memory-mapped: workers are killed without notice
    RUN/PID-START.facts            JSON lines, one write each: names, processes, loaders, experiments
    RUN/machine.jsonl              written by the doctor's sampler

A ring is HEADER_BYTES of header and then `capacity` records. The header holds MAGIC, VERSION, pid, capacity
and the number of records ever written (record n is in slot n % capacity; the count follows the record); at
PHASE_OFFSET the phase that the process is in, which its workers read there for their own records.

Every time is time.perf_counter_ns(): CLOCK_MONOTONIC, the same clock in all processes of a node.
wall = cpu + queue + blocked: `cpu` and `queue` (ready, but no core was free) are the recording thread's.
"""

import struct

ENVIRONMENT = "FEEDRATE_DOCTOR"  # the run folder; absent: the hook does nothing

MAGIC = b"feedring"
VERSION = 1
HEADER = struct.Struct("<8sIIqq")  # magic, version, pid, capacity, written
HEADER_BYTES = 64
WRITTEN_OFFSET = 24
PHASE_OFFSET = 32
CAPACITY = 131072

# kind, phase, name, start_ns, wall_ns, cpu_ns, queue_ns, a, b, c
RECORD = struct.Struct("<HHIqqqqqqq")

# Phases: the real run first, then the experiments. Every record carries the phase that it was made in.
REAL = 0
DRAIN = 1  # the loader's batches taken without training: what it could give
AGAIN = 2  # the samples of DRAIN once more: what it would give from memory
TRIAL = 3  # the user's loop on the same loader with another number of workers
REPLAY = 4  # the user's loop on batches kept in memory: what the device could take
REPLAY_HALF_PRECISION = 5  # the same under autocast
REPLAY_CHANNELS_LAST = 7  # the same in channels-last layout
REPLAY_LOADER_LAYOUT = 8  # the same on batches whose images are in memory as feedrate.Loader's do
PHASES = (
    "real", "drain", "again", "trial", "replay", "replay-half-precision", "replay-half-batch",
    "replay-channels-last", "replay-loader-layout",
)  # fmt: skip
EXPERIMENTS = (DRAIN, AGAIN, TRIAL, REPLAY, REPLAY_HALF_PRECISION, REPLAY_CHANNELS_LAST, REPLAY_LOADER_LAYOUT)
# 6 was the same on half of each batch, in runs that earlier versions recorded.

# In the training process (the main thread of a rank).
WAIT = 1  # one next() of a loader. name: the loader; a: samples (-1: StopIteration); b: number of the batch
#           in its iterator, from 0; c: bits below; cpu and queue: 0 where it is not probed
ITERATOR = 2  # the making of a loader's iterator. name: the loader
COPY = 3  # host to device. name: file:line; a: bytes; b: 1 pinned, 4 on a stream of its own;
#           c: bytes per element
SYNC = 4  # .item() and the like on a device tensor. name: call file:line; a: calls that it stands for
READBACK = 5  # device to host. name: call file:line
FORWARD = 6  # the outermost module's call
BACKWARD = 7
OPTIMIZER = 8
SAVE = 9  # a known saver (torch.save ...). name: call file:line
EXPOSED = 10  # wall: how long the device stood idle in the wait that began at start_ns
DEVICE = 11  # device clock, of the step whose wait ended at start_ns. wall: from the batch's arrival to the
#              step's end; a: of it before the first forward pass; c: of it in that
WRITE = 14  # writing calls that can be timed from outside (fsync, flush, savefig ...). name: call file:line

# c of WAIT
PROBED = 2  # the step after this wait is probed; some are left alone, to measure what probing costs

# Where samples are made: a worker, or the training process when num_workers is 0.
FETCH = 20  # one batch made. a: samples; b: worker id (-1: the training process); c: number of the fetch;
#             cpu and queue: -1 where the training process makes it, in a step that is not probed
PART = 21  # a named part of the fetch before it, its nested parts left out. name: "read:…", "decode:…",
#            "transform:…", "collate:…"; a: calls
HANDOVER = (
    22  # between two fetches of a worker. a: CPU time of the process's other threads since the first of
)
#                them began (one pickles)
IO = 23  # of the fetch before it. a: bytes read by system calls (page cache included); b: bytes from a disk;
#          c: major faults. Each probed fetch has one; a fetch without it was left alone, without parts.

# In both.
STACK = 30  # one look at a thread's stack. name: "file:line function" innermost first, joined by ';', where
#             the innermost is "file:line@INSTRUCTION function" (f_lasti); a: bits below
OPENED = 31  # a file opened for reading inside a fetch. name: the path, of the first OPENED_PATHS
OPENED_PATHS = 1000
# 12, 13 and 32 (batches pinned, passes without an optimizer step, files written) are in older recordings.

# a of STACK
ON_CPU = 1  # the thread used a core, or was ready to, for more than half of the time since the last look
IN_FETCH = 2
IN_WAIT = 4
RANDOM_DRAWN = 8  # random numbers were drawn since this sample began: what follows differs every epoch
INTERPRETED = 32  # met between two instructions of Python, not inside a call into C
IN_MODEL = 64  # inside a forward or backward pass, which is timed by itself
UNASKED = 128  # no loader was asked for a batch yet
DRAWS_KNOWN = 16  # this sample's random draws are watched: the bit before means something
