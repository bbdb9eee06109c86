"""What is best for one model at one length, found out on it: the parts of ``longspan tune``."""
