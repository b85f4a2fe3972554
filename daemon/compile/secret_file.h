/* Small files that hold a secret: a private key, a password. Thread: any; both functions block. */
#ifndef KOPS_COMPILE_SECRET_FILE_H
#define KOPS_COMPILE_SECRET_FILE_H

#include <stddef.h>

#include "util/error.h"

enum { SECRET_FILE_SIZE = 4096 /* of a text, with its ending zero */ };

/* All of its text. Refuses a file that others than its owner (this user, or root) can read or write, and one that is
 * longer than `size` - 1 bytes. */
int secret_file_read(const char *path, char *into, size_t size, struct error *e);

/* A file whose first line is "bearer TOKEN" or "basic USER:PASSWORD", as the value of HTTP's header Authorization. */
int secret_file_authorization(const char *path, char into[SECRET_FILE_SIZE], struct error *e);

#endif
