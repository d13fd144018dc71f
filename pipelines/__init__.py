"""From raw files to a checked, sharded dataset, and what is done to its samples."""
