/* Folders of a test's own, and files in them. */
#ifndef KOPS_TESTS_FOLDER_H
#define KOPS_TESTS_FOLDER_H

/* A new empty folder, mode 0700, in TMPDIR; it goes with the test, an OPENING_TEST, and all that is in it. */
const char *folder_new(void);
/* A path in it, valid until the next but three calls. */
const char *folder_path(const char *folder, const char *name);
/* Writes a file there, and makes the folders above it; returns its path as folder_path() does. */
const char *folder_put(const char *folder, const char *name, const char *text);

#endif
