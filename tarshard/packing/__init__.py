"""From an image folder to tar shards; a stranger to streaming."""
