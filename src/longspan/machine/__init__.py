"""What this machine has: memory and disk."""
