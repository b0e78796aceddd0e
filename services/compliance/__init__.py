"""Holds, erasures and their receipts."""
