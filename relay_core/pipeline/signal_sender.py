"""Send signals; those to a person need a binding, as messages do."""

from __future__ import annotations

from relay_core.errors import AccessDenied
from relay_core.messages.signals import Signal, SignalHub
from relay_core.messages.subjects import is_of_bus
from relay_core.pipeline.routing import AdapterRouting
from relay_core.rules.bindings import Bindings


class SignalSender:
    """Pass signals on to their listeners."""

    def __init__(self, hub: SignalHub, adapters: AdapterRouting, bindings: Bindings) -> None:
        self._hub = hub
        self._adapters = adapters
        self._bindings = bindings

    def send(self, subject: str, signal: Signal) -> None:
        """Send a signal to the current listeners.

        Raises:
            AccessDenied: if the subject is a person to whom the endpoint of the signal is not bound. An adapter may
                show a signal's content to the person, so a signal must not bypass the bindings.
        """
        sender = signal.endpoint_subject
        if self._adapters.is_person(subject) and not is_of_bus(sender):
            binding = self._bindings.find(sender, subject)
            if isinstance(binding, str):
                raise AccessDenied(binding, sender=sender, subject=subject, code="not_bound")
        self._hub.emit(subject, signal)
