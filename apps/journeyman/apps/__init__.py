"""Programs on top of the platform: the command line, its process roles and the embedded stack."""
