"""Power cuts, proved from a record of the disk: no acknowledged message is lost, whatever a drive's cache loses.

`python3 -m tests power` lets a bus publish on an ext4 file system whose disk records every write and flush
(`disk.py`); the publisher records each acknowledgement in the same order (`publisher.py`). Then it builds the states
that a power cut could have left at many points of that record (`cut.py`), starts a bus on each, and looks for every
message that was acknowledged before that point (`check.py`).

tests/core/crash cuts the power of a running bus with ext4's shutdown ioctl, which lets a sync succeed that it
overtakes: without any of Relay's code, 2 to 7 of 100 such cuts lost the first sync of a new file (`shutdown_race.py`).
Here no sync is overtaken: the states are built from the record.
"""
