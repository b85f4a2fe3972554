/* The configuration file: whatever is in it, it is refused with a message for people, or taken; and what was taken is
 * printed as a file that means the same. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "main/config.h"
#include "tests/fuzz/fuzz.h"

static void check_error(const struct error *e)
{
    FUZZ_CHECK(e->code != ERROR_NONE && e->message[0]);
    for (const unsigned char *c = (const unsigned char *)e->message; *c; c++)
        FUZZ_CHECK(*c != '\n' && *c != '\r' && *c != 0x1b); /* one line of a log, and no escapes for a terminal */
}

/* 0: `text` was taken. Says what is then set. */
static int take(const char *text, size_t size, char **ret_printed)
{
    int fd = memfd_create("config", MFD_CLOEXEC);
    struct config config = {0};
    struct error e = {0};
    char path[40];
    size_t length;
    FILE *printed;
    int r;

    FUZZ_CHECK(fd >= 0 && write(fd, text, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    FUZZ_CHECK(config_init(&config, &e) == 0);
    r = config_read_file(&config, path, &e);
    if (r >= 0)
        r = config_finish(&config, &e);
    if (r >= 0)
        r = config_resolve_names(&config, &e);
    if (r < 0) {
        check_error(&e);
    } else {
        printed = open_memstream(ret_printed, &length);
        FUZZ_CHECK(printed);
        config_print(&config, printed);
        fclose(printed);
    }
    config_free(&config);
    close(fd);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *first, *second;

    if (take((const char *)data, size, &first) < 0)
        return 0;
    FUZZ_CHECK(take(first, strlen(first), &second) >= 0);
    FUZZ_CHECK(!strcmp(first, second));
    free(first);
    free(second);
    return 0;
}
