"""The vector engine: Qdrant's wire over Qdrant's own engine, for one machine."""
