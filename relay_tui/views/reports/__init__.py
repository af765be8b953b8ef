"""Reports: `view` has the list and the open report, `nightly` its sections, `layout` fits them to the screen."""
