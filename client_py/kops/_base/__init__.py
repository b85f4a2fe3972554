"""The base of the package, used by every other folder: errors, declarations, names, and the loading of the compiled part. No I/O."""
