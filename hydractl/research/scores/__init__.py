"""Head scores of other papers, compared with circuits."""
