"""From mailbox to consumer.

Subscriptions, worker pools and pull consumers, the dispatcher of each mailbox, and the handling of one message until it
is completed or dead-lettered. May import `records` and below.
"""
