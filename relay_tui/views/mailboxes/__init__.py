"""Mailboxes and senders: `view` has both tables, `rows` and `order` fill them, `peek` and `mail` show the messages."""
