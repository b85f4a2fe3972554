/* The secret of a cache directory, and how files get into one. */
#include "compile/cache_disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/log.h"

static const char secret_name[] = "secret";

int cache_temporary(int directory, char ret_name[CACHE_TEMPORARY_SIZE])
{
    unsigned char random[8];

    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return -1;
    snprintf(ret_name, CACHE_TEMPORARY_SIZE, ".new-%016llx", (unsigned long long)cache_get64(random));
    return openat(directory, ret_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int cache_write_all(int fd, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;

    while (size) {
        ssize_t n = write(fd, at, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

ssize_t cache_read_all(int fd, void *bytes, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(fd, (unsigned char *)bytes + done, size - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (!n)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* 1: read; 0: there is none; -1: there is one that cannot be trusted. */
static int read_secret(int directory, unsigned char *ret_secret)
{
    unsigned char bytes[CACHE_SECRET_BYTES + 1];
    int fd = openat(directory, secret_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    int r = -1;

    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
        cache_read_all(fd, bytes, sizeof(bytes)) == CACHE_SECRET_BYTES) {
        memcpy(ret_secret, bytes, CACHE_SECRET_BYTES);
        r = 1;
    }
    close(fd);
    return r;
}

/* By a link: of two daemons that begin at once one makes it, and the other one reads that. */
static int make_secret(int directory, struct error *e)
{
    unsigned char bytes[CACHE_SECRET_BYTES];
    char name[CACHE_TEMPORARY_SIZE];
    int fd, r = -1;

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return error_set(e, ERROR_INTERNAL, "getrandom: %s", strerror(errno));
    fd = cache_temporary(directory, name);
    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "a file cannot be made in it: %s", strerror(errno));
    /* Flushed, unlike modules: with an empty secret after a power cut all of them would be lost. */
    if (cache_write_all(fd, bytes, sizeof(bytes)) < 0 || fsync(fd) < 0)
        error_set(e, ERROR_INTERNAL, "its secret cannot be written: %s", strerror(errno));
    else if (linkat(directory, name, directory, secret_name, 0) < 0 && errno != EEXIST)
        error_set(e, ERROR_INTERNAL, "its secret cannot be put in place: %s", strerror(errno));
    else
        r = 0;
    unlinkat(directory, name, 0);
    close(fd);
    return r;
}

int cache_secret_get(int directory, unsigned char ret_secret[CACHE_SECRET_BYTES], struct error *e)
{
    int r = read_secret(directory, ret_secret);

    if (r < 0) {
        log_warning("cache_secret_replaced", "reason=\"it is no file of 32 bytes that only this daemon can read\"");
        if (unlinkat(directory, secret_name, 0) < 0 && errno != ENOENT)
            return error_set(e, ERROR_INTERNAL, "its secret cannot be replaced: %s", strerror(errno));
    }
    if (r < 1) {
        if (make_secret(directory, e) < 0)
            return -1;
        if (read_secret(directory, ret_secret) < 1)
            return error_set(e, ERROR_INTERNAL, "its secret cannot be read back");
    }
    return 0;
}
