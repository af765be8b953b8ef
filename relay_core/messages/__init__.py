"""Messages as values.

Subjects and the trie that matches them, ids, envelopes, payloads, signals, results, deliveries, dead letters, filters
and replay plans, and the models that operators see. Values and pure functions: nothing here touches a file, socket or
thread. May import `errors`, `clock` and `config`.
"""
