"""Relay against alternatives, in one run on your machine: ``python -m benchmarks compare``.

`programme.py` lists contestants and metrics, `contestant.py` has their interface, `worker.py` measures, `runner.py`
interleaves the rounds.

**Two classes.** Figures are compared only with others of the same guarantee. *Power*: a message is synced to the disk
before it is acknowledged, and a sync may cover several. *Kill*: it is handed to the kernel. The syncs of 500 messages
one by one, and of 500 with 64 in flight, without those of the start (``strace -f -c -e trace=fsync,fdatasync``):

=====================  ============  =============  ===============================================================
contestant             power         kill
=====================  ============  =============  ===============================================================
the floor              1000, 1000    0, 0           file and directory
Relay                  500, 11       0, 0           through the socket 500, 20
NATS JetStream         502, 502      0, 0           a stream never syncs once for several messages
Redis streams          500, 32       0, 0           once a turn of its loop, which reads some 16 messages
``mailbox.Maildir``    1000, 1000    500, 500       `add` always syncs the file; the directory's sync is ours
persist-queue, SQLite  513, 513      513, 513       has no setting for it
persist-queue, files   5, 5          5, 5           not in the first class
=====================  ============  =============  ===============================================================

After kill -9 in the second class, JetStream had all of 500 acknowledged messages, Redis all of 5,000.

**Bursts.** 500 messages (the default) and 2,000 are a burst: at 20,000 a second 2,000 take 0.1 s, within which Relay
need not have made a file yet. With ``--messages 20000`` its messages also become files while the time runs, as under a
steady load; the others store a message the same way at any length. Latency is always measured with at most 2,000, ten
seconds.

**Goals.** `goals.py` compares Relay with the peers its issue names, and says which goals this run met. A verdict holds
for a quiet machine only: tasks are measured minutes apart, and the time of a sync may differ several times over.

**What is equal.** The payload, encoded for each message; the number in flight; the disk; one process that publishes
and reads, while a server has another; each client's own way of having many in flight, the faster where there are two.

**What is not equal, and in whose favour.**

1. A library needs no hop to another process. So libraries are compared with the library, servers with the socket.
2. JetStream goes over TCP on the loopback, since it has no Unix sockets; Redis and Relay over a Unix socket.
3. JetStream and Redis store a message of a fan-out once, with a position in the stream per reader, and keep it when
   all have read it. Relay stores a copy for each endpoint, so that each can fail, be retried and be replayed alone, and
   removes it.
4. Redis and persist-queue's SQLite sync acknowledgements (counted: 2 and 3 syncs per message, from publishing to
   acknowledging). Relay and JetStream do not (1): after a power loss they may deliver a handled message again.
5. A publish to Relay also checks access, rate, budget and pressure, and is indexed and traced; through its socket it
   can be repeated without harm. The others store bytes.
6. The servers are written in Go and C. All clients are in Python, with asyncio. (redis-py's blocking client was half as
   fast again, one by one.) `bare_client.py` takes the client out, for Relay and Redis. No client uses uvloop.
7. The memory of a library is the whole Python process that uses it, with the benchmark in it.
"""
