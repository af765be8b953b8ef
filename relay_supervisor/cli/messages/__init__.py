"""Commands that send, receive and trace messages."""
