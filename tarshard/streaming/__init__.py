"""From tar shards to batches; a stranger to packing."""
