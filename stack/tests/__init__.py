"""Tests of the stack with real processes."""
