"""The tables of a report: pure functions from DataFrame to DataFrame, one module each. `TABLES` lists them.

`carry_over`, `daily` and `anomalies` are computed from these tables and from earlier days (`spark.one_day`). May import
`events`, `intervals`, `percentiles` and the event schema, but nothing that reads or writes files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark.days import Day
from spark.tables.adapters import adapters
from spark.tables.breakers import breakers
from spark.tables.conversations import conversations
from spark.tables.dead_letters import dead_letters
from spark.tables.hours import hours
from spark.tables.jobs import jobs
from spark.tables.latency import latency
from spark.tables.pressure import pressure
from spark.tables.refusals import refusals
from spark.tables.senders import Limits, senders
from spark.tables.throughput import throughput


@dataclass(frozen=True, slots=True)
class Sources:
    """The inputs of tables: a day's events, and the passes over them (spark/events/sources.py)."""

    day: Day
    limits: Limits
    events: DataFrame
    traffic: DataFrame
    steps: DataFrame
    incidents: DataFrame
    """Including those carried over from the day before."""


TABLES: dict[str, Callable[[Sources], DataFrame]] = {
    "conversations": lambda of: conversations(of.events),
    "hours": lambda of: hours(of.traffic, of.incidents, of.day),
    "throughput": lambda of: throughput(of.traffic),
    "senders": lambda of: senders(of.traffic, of.limits),
    "refusals": lambda of: refusals(of.traffic),
    "latency": lambda of: latency(of.steps),
    "dead_letters": lambda of: dead_letters(of.incidents, of.day),
    "pressure": lambda of: pressure(of.incidents, of.day),
    "breakers": lambda of: breakers(of.incidents, of.day),
    "adapters": lambda of: adapters(of.incidents, of.steps, of.day),
    "jobs": lambda of: jobs(of.incidents),
}
"""By name. The slowest come first, so that they do not run alone at the end."""
