"""The daemon under violence: kills, stops, a full disk, a clock that jumps."""
