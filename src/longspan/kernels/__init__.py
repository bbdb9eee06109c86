"""Kernels: each folder holds a contract, a reference and the implementations, which never import each other."""
