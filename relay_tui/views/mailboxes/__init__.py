"""Mailboxes and senders: `view` has both tables (`rows`, `ranking`), `mailbox_pane` one mailbox (`mail`)."""
