#!/bin/sh
# Tell a person when a disk is nearly full. Run it hourly from cron, which has neither your PATH nor your runtime
# directory ('relay status' shows the socket):
#
#   PATH=/path/to/.venv/bin:/usr/bin:/bin
#   RELAY_SOCKET=/run/user/1000/relay/relay.sock
#   0 * * * *  /path/to/examples/cron_notify.sh relay.human.telegram.tg.12345 / 90
#
# Set up once: 'relay agent add cron', and a binding in adapters.json that lets this agent write to that person:
#
#   "bindings": [{"chat": "relay.human.telegram.tg.12345", "agent": "relay.agent.cron", "start": "both"}]
#
# While the person cannot be reached, the message waits on disk. A refusal is exit code 4, and cron mails the reason to
# its owner.
set -eu

person=${1:?'whom to tell, such as relay.human.telegram.tg.12345'}
disk=${2:-/}
limit=${3:-90}

used=$(df -P "$disk" | awk 'NR == 2 { sub("%", "", $5); print $5 }')
[ "$used" -ge "$limit" ] || exit 0

# One warning a day: a repeated dedupe id publishes nothing.
exec relay publish "$person" "$disk on $(hostname) is $used % full" --text \
  --from relay.agent.cron --dedupe "disk-$disk-$person-$(date +%F)"
