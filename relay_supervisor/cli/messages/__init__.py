"""Commands that send, receive and trace messages. Imports are as in `cli`."""
