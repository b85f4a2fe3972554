#include "util/shortage.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

uint64_t shortage_descriptors_max(void)
{
    struct rlimit files;

    return getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > INT64_MAX ? INT64_MAX : files.rlim_cur;
}

int error_shortage(struct error *e, int cause, const char *what)
{
    if (cause != EMFILE && cause != ENFILE)
        return error_set(e, ERROR_OUT_OF_MEMORY, "%s: %s", what, strerror(cause));
    error_set(e, ERROR_QUOTA_EXCEEDED, "%s: %s has no descriptors left; try again later", what,
              cause == EMFILE ? "the daemon" : "this machine");
    error_detail_text(e, "quota", "descriptors");
    if (cause == ENFILE) /* how many a machine has is not known without opening a file */
        return -1;
    /* Each below the limit is taken, or there would have been one. */
    error_detail_number(e, "current", (int64_t)shortage_descriptors_max());
    return error_detail_number(e, "limit", (int64_t)shortage_descriptors_max());
}
