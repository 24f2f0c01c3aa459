"""Sources of items: folders, tables and shards."""
