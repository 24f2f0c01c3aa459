"""report: what do reports of eval say, and is the first model better?"""
