"""Telegram: people talk to agents through a bot, in private chats and in groups.

- `config`: the entry in adapters.json, checked.
- `api`: one call of the Bot API, and its errors. The bot's token never leaves this module.
- `polling`: the loop that fetches updates, and the effect of its failures on the adapter's state.
- `bot`: state that survives a restart or reload: the offset, the updates taken, the recipients of answers.
- `chats`: pure rules: accepted users, the subject of a chat, clean text.
- `inbound`: an update becomes a message, exactly once; `notices` tells the person if it does not.
- `attachments`: incoming files (downloaded, limited, safely named), outgoing files (from allowed directories only).
- `outbound`: a message becomes Telegram messages, each sent at most once.
- `splitting`, `formatting`: pure: split a text, convert markdown to Telegram's HTML and a payload to messages.
- `limits`: waits to respect Telegram's limits, per chat, per group and overall.
- `presence`: typing and progress while an agent works.
- `adapter`: assembles the parts behind `relay_core.adapters.interface`.
"""
