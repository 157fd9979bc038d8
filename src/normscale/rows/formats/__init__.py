"""The formats of this package, a file each."""
