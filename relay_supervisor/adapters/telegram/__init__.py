"""Telegram: people talk to agents through a bot, in private chats and in groups.

From the platform inwards and out again:

- `config`: its part of adapters.json.
- `api`: one call of the Bot API, and its errors. The bot's token never leaves `api`.
- `polling`: the loop that polls for updates, and its failures as the adapter's status.
- `bot`: state that survives a restart or a hot reload: the offset, the handled updates, the origins of messages, and
  which of an old and a new adapter listens.
- `chats`: pure rules: who may write, the subject of a chat, clean text.
- `inbound`: publishes an update exactly once; `notices`: tells a person if that fails.
- `attachments`: files in (downloaded, limited, named safely) and files out (only from allowed directories).
- `outbound`: sends a message as Telegram messages, each at most once.
- `splitting`, `formatting`: pure: a text in parts, markdown as Telegram's HTML, a payload as messages.
- `limits`: Telegram's rate limits, kept by waiting: per chat, per group and overall.
- `presence`: typing and progress while an agent works.
- `adapter`: starts and stops these parts.
"""
