"""The services, all of the same shape."""
