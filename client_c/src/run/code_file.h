/* Files for binaries that the daemon hands out. */
#ifndef KOPS_CLIENT_CODE_FILE_H
#define KOPS_CLIENT_CODE_FILE_H

#include <kops/kops.h>

/* A memfd whose pages this process takes; the daemon writes to it and seals it. *ret_fd is the caller's. Errors:
 * os_error. */
enum kops_code code_file(size_t size, int *ret_fd, struct kops_error *e);

#endif
