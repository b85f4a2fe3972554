#include "compile/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/path_trust.h"

/* A descriptor of a file that nobody else has had a hand in or an eye on. */
static int open_secret(const char *path, struct error *e)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool closed = false;
    struct stat st;

    if (fd < 0)
        return error_set(e, errno == EACCES ? ERROR_PERMISSION_DENIED : ERROR_INVALID_ARGUMENT,
                         "%.200s cannot be read: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s is no regular file", path);
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        error_set(e, ERROR_PERMISSION_DENIED, "%.200s belongs to user %u: it must be the daemon's user's, or root's",
                  path, (unsigned)st.st_uid);
    else if (st.st_mode & 077)
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s can be read or written by others (mode %03o): make it 0600", path,
                  (unsigned)st.st_mode & 0777);
    else if (geteuid() == 0 && path_trust(path, &st, 0, PATH_WRITERS, &closed, e) < 0 && !closed)
        e->code = ERROR_INVALID_ARGUMENT;
    else
        return fd;
    close(fd);
    return -1;
}

int secret_file_read(const char *path, char *into, size_t size, struct error *e)
{
    const int fd = open_secret(path, e);
    size_t done = 0;
    ssize_t n = 1;

    if (fd < 0)
        return -1;
    while (n > 0 && done < size - 1) {
        n = read(fd, into + done, size - 1 - done);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            done += (size_t)n;
    }
    close(fd);
    if (n < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be read: %s", path, strerror(errno));
    if (n > 0 || memchr(into, 0, done))
        return error_set(e, ERROR_INVALID_ARGUMENT, "%.200s is too long, or no text", path);
    into[done] = '\0';
    return 0;
}

/* Neither may end the header's line. */
static bool is_printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            return false;
    return true;
}

int secret_file_authorization(const char *path, char into[SECRET_FILE_SIZE], struct error *e)
{
    static const char bearer[] = "bearer ", basic[] = "basic ";
    char text[SECRET_FILE_SIZE / 2];
    const char *rest;
    int r = -1;

    if (secret_file_read(path, text, sizeof(text), e) < 0)
        return -1;
    text[strcspn(text, "\r\n")] = '\0';
    if (!is_printable(text)) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s: its first line has characters that no header has", path);
    } else if (!strncmp(text, bearer, sizeof(bearer) - 1) && text[sizeof(bearer) - 1]) {
        snprintf(into, SECRET_FILE_SIZE, "Bearer %s", text + sizeof(bearer) - 1);
        r = 0;
    } else if (!strncmp(text, basic, sizeof(basic) - 1) && strchr(text, ':')) {
        rest = text + sizeof(basic) - 1;
        memcpy(into, "Basic ", 6);
        sodium_bin2base64(into + 6, SECRET_FILE_SIZE - 6, (const unsigned char *)rest, strlen(rest),
                          sodium_base64_VARIANT_ORIGINAL);
        r = 0;
    } else {
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "%.200s: its first line must be \"bearer TOKEN\" or \"basic USER:PASSWORD\"", path);
    }
    sodium_memzero(text, sizeof(text));
    return r;
}
