"""What `trtspec-doctor` checks: a machine, and a target with its drafts."""
