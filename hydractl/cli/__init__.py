"""Terminal commands: parse, call one stage, render its report."""
