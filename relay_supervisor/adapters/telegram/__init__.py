"""Telegram: people talk to agents through a bot, in private chats and in groups.

A guided tour, from the platform inwards and out again:

- `config`: what adapters.json says, checked.
- `api`: one call of the Bot API, and its errors. The bot's token never leaves `api`.
- `polling`: the loop that asks Telegram for updates, and what its failures mean for the adapter's status.
- `bot`: what must outlive a restart or a hot reload: the offset, the updates taken, whom an answer belongs to, and
  which of an old and a new adapter listens.
- `chats`: pure rules: who is heard, which subject a chat has, what a clean text is.
- `inbound`: an update becomes a message on the bus, exactly once; `notices`: what a person is told if it does not.
- `attachments`: files in (downloaded, capped, named safely) and files out (only from allowed directories).
- `outbound`: a message becomes Telegram messages, each sent at most once.
- `splitting`, `formatting`: pure: a text in parts, markdown as Telegram's HTML, a payload as messages.
- `limits`: Telegram's limits kept by waiting: per chat, per group and over all.
- `presence`: typing and progress while an agent works.
- `adapter`: all of it put together behind the seam of `relay_core.adapters.interface`.
"""
