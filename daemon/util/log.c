#include "util/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int threshold = LOG_LEVEL_INFO;
static atomic_uint_fast64_t lost, held_back, size_max;
static atomic_flag trimming = ATOMIC_FLAG_INIT;

static const struct {
    const char *name;
    int priority; /* priority of syslog(3), as journald reads it */
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", 3},
    [LOG_LEVEL_WARNING] = {"warning", 4},
    [LOG_LEVEL_INFO] = {"info", 6},
    [LOG_LEVEL_DEBUG] = {"debug", 7},
};

void log_set_level(enum log_level level)
{
    atomic_store(&threshold, (int)level);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (!strcmp(text, levels[i].name)) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    return -1;
}

void log_set_size(uint64_t bytes)
{
    atomic_store(&size_max, bytes);
}

/* Moves the bytes from there on to the file's beginning, and cuts the rest off. What is kept begins with a whole line.
 * It ends where nothing is left to read, so that lines which others append meanwhile come along, but for the last
 * moment's. */
static void keep_from(int fd, off_t from)
{
    char text[4096];
    off_t to = 0;
    ssize_t n;

    for (; (n = pread(fd, text, sizeof(text), from)) > 0; from += n) {
        const char *end = to ? NULL : memchr(text, '\n', (size_t)n);
        const size_t left_out = end ? (size_t)(end + 1 - text) : 0;

        to += pwrite(fd, text + left_out, (size_t)n - left_out, to) > 0 ? n - (ssize_t)left_out : 0;
    }
    if (ftruncate(fd, to) < 0)
        atomic_fetch_add(&lost, 1);
}

/* Trims the file. Among several processes with the file, the one with the lock trims it; among several threads, the one
 * with the flag. */
void log_trim(void)
{
    const off_t most = (off_t)atomic_load_explicit(&size_max, memory_order_relaxed);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat st;
    int fd;

    if (!most || fstat(STDERR_FILENO, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= most ||
        atomic_flag_test_and_set(&trimming))
        return;
    fd = open("/proc/self/fd/2", O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        if (fcntl(fd, F_SETLK, &whole) == 0 && fstat(fd, &st) == 0 && st.st_size > most)
            keep_from(fd, st.st_size - most / 2);
        close(fd);
    }
    atomic_flag_clear(&trimming);
}

void log_write(enum log_level level, const char *event, const char *format, ...)
{
    char line[1024];
    va_list args;
    int n, m;

    /* systemd sets JOURNAL_STREAM for services whose stderr is the journal. */
    n = getenv("JOURNAL_STREAM") ? snprintf(line, sizeof(line), "<%d>", levels[level].priority) : 0;
    n += snprintf(line + n, sizeof(line) - (size_t)n, "level=%s event=%s ", levels[level].name, event);
    if (n > (int)sizeof(line) - 2)
        n = (int)sizeof(line) - 2;
    va_start(args, format);
    m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    va_end(args);
    if (m > 0)
        n += m;
    if (n > (int)sizeof(line) - 2)
        n = (int)sizeof(line) - 2;
    line[n++] = '\n';
    for (ssize_t done = 0, r; done < n; done += r)
        if ((r = write(STDERR_FILENO, line + done, (size_t)(n - done))) <= 0) {
            atomic_fetch_add(&lost, 1);
            break;
        }
    log_trim();
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, unsigned a_second, unsigned *ret_held_back)
{
    if (now_ns - limit->second_ns >= UINT64_C(1000000000)) {
        limit->second_ns = now_ns;
        limit->passed = 0;
    }
    if (limit->passed >= a_second) {
        limit->held_back++;
        atomic_fetch_add_explicit(&held_back, 1, memory_order_relaxed);
        return false;
    }
    limit->passed++;
    *ret_held_back = limit->held_back;
    limit->held_back = 0;
    return true;
}

uint64_t log_lines_lost(void)
{
    return atomic_load(&lost);
}

uint64_t log_lines_held_back(void)
{
    return atomic_load(&held_back);
}

char *log_quote(char *into, size_t size, const char *text, size_t length)
{
    size_t n = 0;

    into[n++] = '"';
    for (size_t i = 0; i < length && n + 6 < size; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\') {
            into[n++] = '\\';
            into[n++] = (char)c;
        } else if (c < 0x20 || c >= 0x7f) {
            n += (size_t)snprintf(into + n, size - n, "\\x%02x", c);
        } else {
            into[n++] = (char)c;
        }
    }
    into[n++] = '"';
    into[n] = '\0';
    return into;
}
