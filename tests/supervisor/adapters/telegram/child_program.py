"""A process with a bus and a Telegram adapter, to be killed: ``python -m ... DATA_DIR URL TOKEN [answer]``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from relay_core import RelayCore
from relay_core.rules.bindings import Binding
from relay_supervisor.adapters.telegram.adapter import TelegramAdapter
from relay_supervisor.adapters.telegram.config import TelegramConfig

AGENT = "relay.agent.backend"
USERS = list(range(1, 11))


async def main(data_dir: str, url: str, token: str, *todo: str) -> None:
    config = TelegramConfig.model_validate({"token": token, "apiBase": url, "allowUsers": USERS, "pollTimeoutSecs": 5})
    async with RelayCore(Path(data_dir)) as relay:
        await relay.register_endpoint(AGENT)
        relay.set_bindings([Binding(chat="relay.human.telegram.tg.>", agent=AGENT, start="both")])
        await relay.add_adapter(TelegramAdapter("tg", config))
        if "answer" in todo:
            await relay.publish("relay.human.telegram.tg.7", {"content": "going out"}, sender=AGENT)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
