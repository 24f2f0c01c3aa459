"""Head importance by methods of other papers, for comparison with circuits."""
