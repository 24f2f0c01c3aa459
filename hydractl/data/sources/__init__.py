"""Where items come from: folders, tables, shards and streams."""
