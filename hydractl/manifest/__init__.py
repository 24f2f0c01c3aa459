"""JSON documents: checkpoint headers, head masks, head importance and reports."""
