"""The demo behind ``relay-tui --demo``: a real supervisor in a temporary directory, with simulated clients.

One process runs all workloads through `RelayClient`. Nothing on the screen is faked: the bus produces every number,
refusal and dead letter.

==================  =====================================  =====================================================
workload            where                                  what it shows
==================  =====================================  =====================================================
agents              ``relay.desk.*`` ask, ``planner``,     conversations of up to five hops with parents and
                    ``backend``, ``tests``, ``docs``,      children; some go in a circle (`cycle`), too far
                    ``release``, ``changelog`` work        (`max_hops`) or too deep (`call_budget`)
desks               ``relay.desk.*``                       messages that wait, and are claimed; some are failed by
                                                           their reader (`consumer_failed`)
search              ``relay.agent.search``                 fails for a while, so its breaker opens, is probed
                                                           and closes (`consumer_failed`)
deploys             ``relay.agent.deploys``                a dozen failures from when the registry was down;
                                                           a replay of them succeeds at once
reviewer            ``relay.agent.reviewer``               too much work in waves: its mailbox goes through
                                                           warning to full, and drains (`expired` on the way)
crawler             ``crawler`` to ``relay.agent.archive`` a sender that reaches its rate limit from time to time
vision              ``relay.agent.vision``                 a handler that is sometimes too slow (`timeout`)
mailroom            ``relay.agent.mailroom``               untrusted text: escape sequences, markup, bidi, emoji
teams               ``relay.team.*``                       one message to three mailboxes, one of which may fail
importer            ``relay.agent.importer``               files dropped into its Maildir, some of them torn
                                                           (`malformed`)
lost                ``relay.agent.translator`` …           no target (`no_match`), or expired on arrival
laptop              ``relay.desk.laptop``                  a consumer that disconnects with a message in flight
                                                           (`disconnected`)
guest               ``relay.guest.kiosk``                  messages that an access rule denies
hooks               adapters ``status-page``, ``pager``    a webhook that works, and one whose receiver returns
                                                           500 for a while (`adapter_failed`)
journal             adapter ``journal``                    a plugin, one Python file
(none)              adapters ``old-chat``, ``crm``         one that is disabled, one with an invalid entry
janitor             the bus itself                         runs jobs, and limits dead letters and events
==================  =====================================  =====================================================

`session` starts and stops it through `runner`, a process that cleans up even if the dashboard is killed. `settings`
writes the configuration, `traffic` runs the workloads of `agents`, `failing`, `dead_letters` and `external`.
"""
