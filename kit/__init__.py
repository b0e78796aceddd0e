"""What all services share: configuration, serving, errors, database, sealing, identity. It knows no service."""
