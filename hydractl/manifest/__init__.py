"""The JSON documents, and what a checkpoint's header says of itself."""
