"""What `eval` needs of any baseline that `--compare KIND:` makes of models; `hydractl.research.baselines` holds the baselines."""
