"""The base of the package, used by every other folder: errors, declarations, names, the loading of the compiled part, folders of caches.
Nothing here speaks to a daemon."""
