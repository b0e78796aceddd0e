"""Who is calling, and what it may do."""
