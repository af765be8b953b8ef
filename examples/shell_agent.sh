#!/bin/sh
# An agent in a few lines of shell: it waits for a message, does the work, answers and acknowledges.
#
#   export RELAY_TOKEN=$(relay agent add counter --description "counts the words of what you send" --print-token)
#   examples/shell_agent.sh
#
# A message is acknowledged only after its answer is published. If this script dies before that, the message becomes a
# dead letter when its lease ends, and the operator decides.
set -eu

me=relay.agent.counter

part() {
  printf %s "$work" | python3 -c "import json, sys; message = json.load(sys.stdin)['messages'][0]; print($1)"
}

while work=$(relay inbox "$me" --wait --claim --lease 5m --json); do
  id=$(part 'message["id"]')
  to=$(part 'message.get("replyTo", message["from"])')
  words=$(part 'message["payload"]["content"]' | wc -w | tr -d ' ')
  # --parent: the answer inherits the message's remaining budget.
  if relay publish "$to" "$words words" --text --from "$me" --parent "$id" >/dev/null; then
    relay ack "$me" "$id"
  else
    relay fail "$me" "$id" "the answer could not be delivered"
  fi
done
