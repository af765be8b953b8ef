"""The demo behind ``relay-tui --demo``: a whole machine in a temporary directory, with nothing made up.

A real supervisor runs there, and one process beside it plays everybody else through `RelayClient`. What the
dashboard shows has happened: each number, refusal and dead letter is the bus's own.

==================  =====================================  =====================================================
who                 where                                  what to see
==================  =====================================  =====================================================
agents              ``relay.desk.*`` ask, ``planner``,     conversations of up to five hops with parents and
                    ``backend``, ``tests``, ``docs``,      children; some go in a circle (`cycle`), too far
                    ``release``, ``changelog`` work        (`max_hops`) or too deep (`call_budget`)
desks               ``relay.desk.*``                       mail that waits to be read, and is claimed; some is
                                                           refused by its reader (`consumer_failed`)
search              ``relay.agent.search``                 fails for a while, so its breaker opens, is probed
                                                           and heals (`consumer_failed`)
deploys             ``relay.agent.deploys``                a dozen failures from when the registry was down;
                                                           a replay of them succeeds at once
reviewer            ``relay.agent.reviewer``               too much work in waves: its mailbox goes through
                                                           warning to full, and drains (`expired` on the way)
crawler             ``crawler`` to ``relay.agent.archive`` a sender at its rate limit, in spells
vision              ``relay.agent.vision``                 a handler that is too slow now and then (`timeout`)
mailroom            ``relay.agent.mailroom``               strangers' texts: escape sequences, markup, bidi, emoji
teams               ``relay.team.*``                       one message to three mailboxes, of which one may fail
importer            ``relay.agent.importer``               files dropped into its Maildir, some of them torn
                                                           (`malformed`)
lost                ``relay.agent.translator`` …           nobody is there (`no_match`), or it came too late
laptop              ``relay.desk.laptop``                  a consumer that goes away with a message in its hands
                                                           (`disconnected`)
guest               ``relay.guest.kiosk``                  what an access rule denies
hooks               adapters ``status-page``, ``pager``    a webhook that works, and one whose receiver answers
                                                           500 for a while (`adapter_failed`)
journal             adapter ``journal``                    a plugin, one Python file
(nobody)            adapters ``old-chat``, ``crm``         one that is switched off, one whose entry is wrong
janitor             the bus itself                         runs jobs, and keeps dead letters and events few
==================  =====================================  =====================================================

`world` starts and ends it all, `keeper` is the process that does so even if the dashboard is killed, `settings`
are the operator's files, and `traffic` is the cast, in `agents`, `trouble`, `letters` and `outside`.
"""
