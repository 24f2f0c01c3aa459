"""Choice of the heads that members keep."""
