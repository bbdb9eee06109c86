"""Find out how a model rotates queries and keys, and check that an attachment leaves what it does inside its window."""
