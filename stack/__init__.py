"""Teamlore on one machine: an embedded Postgres, the vector engine and every service, on loopback."""
