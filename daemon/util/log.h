/* logfmt lines on stderr, with the `<N>` priority prefix that journald reads when stderr is a journal.
 *
 *     log_info("listening", "socket=%s backlog=%d", path, backlog);
 *     → level=info event=listening socket=/run/kopsd/kopsd.sock backlog=128
 *
 * A value that holds spaces, quotes or bytes from a client is written with log_quote(). Thread: any; one
 * write(2) a line. */
#ifndef KOPS_UTIL_LOG_H
#define KOPS_UTIL_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

/* Parses "error", "warning", "info", "debug"; returns 0 or -1. */
int log_level_parse(const char *text, enum log_level *ret_level);

/* Sets the size above which log_trim() cuts a log file on stderr to its last half; each line that this process writes
 * trims, too. 0: the file may grow. Several processes may trim one file; a line that another process writes at that
 * moment may get lost. */
void log_set_size(uint64_t bytes);
void log_trim(void);

void log_write(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Writes `text` in double quotes with escapes into `into`, cutting it to fit. Returns `into`. */
char *log_quote(char *into, size_t size, const char *text, size_t length);

/* Limits the lines a second for events that clients can cause at any rate. Owned by the caller; zero at first. */
struct log_limit {
    uint64_t second_ns; /* begin of the second that is counted */
    unsigned passed, held_back;
};

/* Tells whether a line may be written now. If so, *ret_held_back is the number of lines held back since the last one.
 */
bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, unsigned a_second, unsigned *ret_held_back);

/* Returns the lines of the whole process that were lost: stderr did not take them, or a limit held them back. */
uint64_t log_lines_lost(void);
uint64_t log_lines_held_back(void);

#define log_at(level, event, ...)                                                                                      \
    do {                                                                                                               \
        if (log_enabled(level))                                                                                        \
            log_write((level), (event), __VA_ARGS__);                                                                  \
    } while (0)
#define log_error(event, ...)   log_at(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warning(event, ...) log_at(LOG_LEVEL_WARNING, event, __VA_ARGS__)
#define log_info(event, ...)    log_at(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...)   log_at(LOG_LEVEL_DEBUG, event, __VA_ARGS__)

#endif
