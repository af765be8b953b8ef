"""The soak rig: clients, a nemesis and a checker around one real supervisor.

`python3 -m tests soak` runs rounds until its time is over. A round is a fresh data directory, a supervisor process,
traffic from clients that share no code with Relay (`wire.py`), and faults drawn from a seed (`nemesis.py`). At its end
the faults stop, the mailboxes drain, the supervisor shuts down, and `checker.py` holds the clients' history and the
files on disk to the rules. A failed round keeps its directory and prints the command that runs it again.
"""
