/* Options that every command takes, and their values. */
#ifndef KOPS_CTL_OPTIONS_H
#define KOPS_CTL_OPTIONS_H

#include <getopt.h>

#include "ctl.h"

/* Options of every command, for the end of its table; ctl_common() handles the values that getopt_long returns for
 * them. */
#define CTL_COMMON_OPTIONS                                                                                             \
    {"socket", required_argument, NULL, 'S'}, {"timeout", required_argument, NULL, 'T'},                               \
        {"json", no_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'},                                            \
    {                                                                                                                  \
        NULL, 0, NULL, 0                                                                                               \
    }

/* Handles 'S', 'T', 'J' and 'h'. Returns -1 to go on, or the exit status to end with; `usage` is the command's. */
int ctl_common(struct ctl *ctl, int option, const char *usage);

/* The arguments that getopt_long reads from now on, for ctl_common(). */
void ctl_options_of(char **argv);

/* Errors are JSON where --json is among the arguments. Before any is read: --json may come behind the wrong one. */
void ctl_look_for_json(char **argv);

/* A whole decimal number from `min` to `max`. */
bool ctl_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* Seconds, whole or not, from `min` to `max`. */
bool ctl_parse_seconds(const char *text, double min, double max, double *ret);

#endif
