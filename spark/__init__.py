"""From events to a nightly report."""
