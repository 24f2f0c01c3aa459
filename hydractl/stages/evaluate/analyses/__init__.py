"""What `eval` needs of any analysis that `--analyse` asks of rows; `hydractl.research.analyses` holds the analyses."""
