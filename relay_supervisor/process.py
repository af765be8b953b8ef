"""The supervisor as a process: logs, signals, the service manager and the exit code.

1. SIGTERM or SIGINT: finish the messages in flight and exit 0. A second signal: exit immediately.
2. SIGHUP: reload the operator's files. It is ignored during the start, which reads them anyway, and while stopping. A
   reload in progress ends before the parts that it uses are closed.
3. The service manager is notified when the supervisor is ready, reloading or stopping. The watchdog is fed from the
   event loop, so that a blocked loop is noticed.
4. A failed start logs its reason in one line, undoes its steps, and exits 1.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from relay_core import __version__
from relay_core.clock import SystemClock
from relay_core.config import LogsConfig, RelayConfig, load_config
from relay_core.errors import ConfigError, RelayError
from relay_core.storage.data_dir import DataDir
from relay_core.storage.trusted_file import read_trusted
from relay_core.tasks import Tasks
from relay_core.text.units import plural
from relay_supervisor.observability.logs import configure_logging
from relay_supervisor.observability.secrets import SecretRedactor
from relay_supervisor.server.socket_server import raise_file_limit
from relay_supervisor.supervisor import Supervisor
from relay_supervisor.systemd_notify import Notifier

logger = logging.getLogger(__name__)

STATUS_SECS = 10.0


def run(data_dir: Path | None, socket: Path | None) -> NoReturn:
    """Run the supervisor until it is told to stop, and exit."""
    redactor = SecretRedactor()
    configure_logging(_logs_config(data_dir), redact=redactor.redact)
    raise_file_limit()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        code = runner.run(_serve(data_dir, socket, redactor))
        # Everything is closed. Leaving the runner would wait for every thread, including one that a plugin left behind.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


async def _serve(data_dir: Path | None, socket: Path | None, redactor: SecretRedactor) -> int:
    supervisor = Supervisor(data_dir, socket, redactor=redactor)
    tasks, reloads, notifier = Tasks(), Tasks(), Notifier()
    _listen_for_signals(supervisor, reloads, notifier)
    try:
        async with supervisor:
            gc.collect()
            gc.freeze()  # objects made at the start are permanent: scanning them would block the loop for 40 ms
            info = supervisor.context.info()
            logger.info(
                "relay %s is ready: socket %s, data %s, pid %d, durability %s (%s)",
                __version__,
                info.socket,
                info.data_dir,
                info.pid,
                info.durability,
                info.promise,
            )
            for problem in supervisor.context.problems():
                logger.warning("%s", problem)
            notifier.ready(_status(supervisor))
            tasks.start(_stay_alive(supervisor, notifier), name="watchdog")
            await supervisor.stopping.wait()
            logger.info("stopping")
            await reloads.close()
            notifier.stopping()
    except RelayError as error:
        logger.error("cannot start: %s", error.message)
        return 1
    finally:
        await reloads.close()
        await tasks.close()
    logger.info("stopped")
    return 0


def _listen_for_signals(supervisor: Supervisor, reloads: Tasks, notifier: Notifier) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if supervisor.stopping.is_set():
            os._exit(128 + number)  # the second signal
        supervisor.stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not add_signal_handler: uvloop may call that twice for one signal if another arrives at the same time.
        signal.signal(number, lambda number, _: loop.call_soon_threadsafe(stop, number))

    def reload() -> None:
        if hasattr(supervisor, "context") and not supervisor.stopping.is_set():
            reloads.start(_reload(supervisor, notifier), name="reload")

    loop.add_signal_handler(signal.SIGHUP, reload)


async def _reload(supervisor: Supervisor, notifier: Notifier) -> None:
    notifier.reloading()
    problems = await supervisor.context.reload()
    configure_logging(supervisor.context.relay.config.logs, redact=supervisor.redactor.redact)
    logger.info("the operator's files were reloaded")
    for problem in problems:
        logger.warning("%s", problem)
    notifier.ready(_status(supervisor))


async def _stay_alive(supervisor: Supervisor, notifier: Notifier) -> None:
    """Feed the watchdog and update the status line."""
    interval = notifier.watchdog_interval()
    clock = SystemClock()
    updated_at = clock.monotonic()
    while True:
        await asyncio.sleep(min(interval or STATUS_SECS, STATUS_SECS))
        notifier.watchdog()
        if clock.monotonic() - updated_at >= STATUS_SECS:
            updated_at = clock.monotonic()
            notifier.status(_status(supervisor))


def _status(supervisor: Supervisor) -> str:
    context = supervisor.context
    metrics = context.relay.metrics()
    count = len(context.problems())
    problems = f", {count} problems" if count else ""
    return (
        f"{plural(len(context.relay.endpoints()), 'endpoint')}, {plural(len(context.connections), 'connection')}, "
        f"{metrics.rate_60s:g} messages/s{problems}"
    )


def _logs_config(data_dir: Path | None) -> LogsConfig:
    """Return the log settings of config.json, or the defaults if it is broken: the start of the bus reports that."""
    try:
        return load_config(DataDir(data_dir).config, RelayConfig(), read_trusted).logs
    except ConfigError:
        return LogsConfig()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        print("uvloop is not installed: using the slower event loop of asyncio", file=sys.stderr)  # noqa: T201
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
