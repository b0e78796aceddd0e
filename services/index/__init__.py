"""Finding memories by meaning."""
