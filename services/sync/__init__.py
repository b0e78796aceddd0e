"""What laptops write."""
