"""Pages, figures and tables of reports, and the contents of files for `inspect`."""
