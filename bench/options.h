/* Command line options of the benchmark programs: a table of names and where their values go. */
#ifndef KOPS_BENCH_OPTIONS_H
#define KOPS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <kops/kernel.h>
#include <kops/kops.h>

enum { EXIT_SKIPPED = 77 }; /* this machine or this daemon cannot do what is measured; stderr says why */

/* `--name VALUE`; exactly one of the three is set. A flag takes no value. The table ends with an empty name. */
struct bench_option {
    const char *name;
    const char **text;
    size_t *count; /* a positive number */
    bool *flag;
};

/* Ends the program with a message when an option is unknown or its value is wrong. */
void options_read(int argc, char **argv, const struct bench_option *options);

/* How a program reaches the daemon: `transport` is auto, socket or shm, `spin` auto, none or microseconds. */
struct bench_connection {
    const char *socket, *transport, *spin;
};

/* The options of one, for the table of a program's. */
#define BENCH_CONNECTION_OPTIONS(c)                                                                                    \
    {.name = "socket", .text = &(c).socket}, {.name = "transport", .text = &(c).transport},                            \
    {                                                                                                                  \
        .name = "spin", .text = &(c).spin                                                                              \
    }

/* Connects, or ends the program: with EXIT_SKIPPED when the daemon offers no such transport. */
kops_client *connect_or_exit(const struct bench_connection *how);

/* Ends the program with EXIT_SKIPPED unless the daemon lists the feature. */
void need_feature(const kops_client *client, const char *feature);

/* Prints the error and returns -1 when `code` is one. */
int check_kops(enum kops_code code, const struct kops_error *error, const char *what);

/* Defines c[i] = a[i] + b[i] as a kernel of a user's, with arguments c, a, b, n. 0, or an exit status with a message.
 */
int user_add_compile(kops_client *client, kops_kernel **ret_kernel);

#endif
