"""Tests that take the ground away: SIGKILL, power loss, a full disk. Each works on a real process or file system."""
