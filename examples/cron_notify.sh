#!/bin/sh
# Tell a person when a disk is nearly full. Once an hour, by cron, which knows neither your PATH nor your runtime
# directory ('relay status' shows the socket):
#
#   PATH=/path/to/.venv/bin:/usr/bin:/bin
#   RELAY_SOCKET=/run/user/1000/relay/relay.sock
#   0 * * * *  /path/to/examples/cron_notify.sh relay.human.telegram.tg.12345 / 90
#
# Set up once: 'relay agent add cron', and in adapters.json a binding, so that this agent and no other may write there:
#
#   "bindings": [{"chat": "relay.human.telegram.tg.12345", "agent": "relay.agent.cron", "start": "both"}]
#
# A person who cannot be reached right now costs nothing: the message waits on disk. A refusal is exit code 4, which cron
# mails to its owner together with the reason.
set -eu

person=${1:?'whom to tell, such as relay.human.telegram.tg.12345'}
disk=${2:-/}
limit=${3:-90}

used=$(df -P "$disk" | awk 'NR == 2 { sub("%", "", $5); print $5 }')
[ "$used" -ge "$limit" ] || exit 0

# The same warning at most once a day, however often this runs: a repeated dedupe id publishes nothing new.
exec relay publish "$person" "$disk on $(hostname) is $used % full" --text \
  --from relay.agent.cron --dedupe "disk-$disk-$person-$(date +%F)"
