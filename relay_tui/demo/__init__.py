"""The demo behind ``relay-tui --demo``: a real supervisor in a temporary directory, with live traffic.

One process plays all agents, people and services through `RelayClient`. Each number, refusal and dead letter on the
dashboard is the bus's own.

==================  =====================================  =====================================================
workload            where                                  what it shows
==================  =====================================  =====================================================
agents              ``relay.desk.*`` ask, ``planner``,     conversations of up to five hops with parents and
                    ``backend``, ``tests``, ``docs``,      children; some loop (`cycle`), or go too far
                    ``release``, ``changelog`` work        (`max_hops`) or too deep (`call_budget`)
desks               ``relay.desk.*``                       waiting mail that people claim; some is failed by its
                                                           reader (`consumer_failed`)
search              ``relay.agent.search``                 fails for a while, so its breaker opens, is probed
                                                           and closes (`consumer_failed`)
deploys             ``relay.agent.deploys``                a dozen failures from an outage of the registry;
                                                           a replay of them succeeds at once
reviewer            ``relay.agent.reviewer``               too much work in waves: its mailbox fills up beyond
                                                           its warning, and drains (some mail is `expired`)
crawler             ``crawler`` to ``relay.agent.archive`` a sender that reaches its rate limit at times
vision              ``relay.agent.vision``                 a handler that is sometimes too slow (`timeout`)
mailroom            ``relay.agent.mailroom``               untrusted text: escape sequences, markup, bidi, emoji
teams               ``relay.team.*``                       one message to three mailboxes, of which one may fail
importer            ``relay.agent.importer``               files dropped into its Maildir, some truncated
                                                           (`malformed`)
lost                ``relay.agent.translator`` …           no recipient (`no_match`), or too late (`expired`)
laptop              ``relay.desk.laptop``                  a consumer that disconnects while it holds a message
                                                           (`disconnected`)
guest               ``relay.guest.kiosk``                  denied by an access rule
hooks               adapters ``status-page``, ``pager``    a webhook that works, and one whose receiver answers
                                                           500 for a while (`adapter_failed`)
journal             adapter ``journal``                    a plugin in one Python file
(none)              adapters ``old-chat``, ``crm``         one disabled, one with an invalid entry
janitor             the bus itself                         runs jobs, and keeps dead letters and events few
==================  =====================================  ==============================================
"""
