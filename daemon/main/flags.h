/* The command line, and the settings from file, environment and command line together. Thread: main; flags_load() also
 * one of the pool's, when the settings are read again. */
#ifndef KOPS_MAIN_FLAGS_H
#define KOPS_MAIN_FLAGS_H

#include <stdbool.h>

#include "main/config.h"

enum { EXIT_USAGE = 2, FLAGS_MAX = 64, FLAG_NAME_MAX = 80 };

/* Flags are applied last, so they are remembered until the file has been read. Texts are those of argv. */
struct flags {
    int argc;
    char **argv;
    const char *file;
    char names[FLAGS_MAX][FLAG_NAME_MAX];
    const char *values[FLAGS_MAX];
    unsigned count;
    bool check, print, supervise, autostart;
    const char *supervise_argument, *autostart_argument; /* in argv */
    const char *keygen;                                  /* file of a key to make; NULL: none */
    bool root;                                           /* the process began as root */
};

/* Returns -1 to go on, or an exit status. Prints help, version or errors. */
int flags_parse(int argc, char **argv, struct flags *f);

/* Loads the settings. `config` must be freed in any case. */
int flags_load(const struct flags *f, struct config *config, struct error *e);

#endif
