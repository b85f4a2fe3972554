/* The one table of the daemon's settings: config.c parses, prints and compares them. A setting is a field of struct
 * config and a row of settings.c; deploy/kopsd.conf shows every one. */
#ifndef KOPS_MAIN_SETTINGS_H
#define KOPS_MAIN_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A LIST is a text of words between commas or blanks; several lines of a file with its key add up. */
enum setting_type { TEXT, LIST, NUMBER, OCTAL, SWITCH };

/* Numbers have a range; a NULL default of a text means that it is found at start. */
struct setting {
    const char *section, *key;
    enum setting_type type;
    size_t offset; /* in struct config: a char *, a uint64_t or a bool */
    const char *fallback;
    uint64_t min, max;
    bool live;       /* a reload takes a change over; else it needs a restart */
    const char *doc; /* NULL: another row tells of this one, which is printed only where it is set */
};

extern const struct setting settings[];
extern const unsigned n_settings;

#endif
