"""The bench of test_pushing for all tests of sync."""

from services.sync.tests.test_pushing import bench

__all__ = ["bench"]
