#!/bin/sh
# An agent in a few lines of shell: it waits for work, does it, answers, and says that it is done.
#
#   export RELAY_TOKEN=$(relay agent add counter --description "counts the words of what you send" --print-token)
#   examples/shell_agent.sh
#
# Only when the answer is out is the message acknowledged. If this script dies before that, the operator finds the
# message among the dead letters when the claim's lease has run out, and decides.
set -eu

me=relay.agent.counter

part() {
  printf %s "$work" | python3 -c "import json, sys; message = json.load(sys.stdin)['messages'][0]; print($1)"
}

while work=$(relay inbox "$me" --wait --claim --lease 5m --json); do
  id=$(part 'message["id"]')
  to=$(part 'message.get("replyTo", message["from"])')
  words=$(part 'message["payload"]["content"]' | wc -w | tr -d ' ')
  # --parent: the answer belongs to the message, and inherits what is left of its budget.
  if relay publish "$to" "$words words" --text --from "$me" --parent "$id" >/dev/null; then
    relay ack "$me" "$id"
  else
    relay fail "$me" "$id" "the answer could not be delivered"
  fi
done
