/* kopsctl: the daemon from a shell. What every command gets, and its connection. Single-threaded. */
#ifndef KOPS_CTL_CTL_H
#define KOPS_CTL_CTL_H

#include <stdbool.h>
#include <stdint.h>

#include <kops/kops.h>

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3, CTL_NOT_DRAINED = 4 };

/* What every command takes, before or after its name. */
struct ctl {
    const char *socket; /* NULL: the usual places */
    int64_t timeout_ms;
    unsigned spin_us;
    int64_t reconnect_ms; /* as in kops_connect_options */
    bool no_autostart;    /* too */
    bool json;
    kops_client *client; /* after ctl_connect(); closed by main() */
};

/* argv[0] is the command's name. */
typedef enum ctl_exit ctl_command(struct ctl *ctl, int argc, char **argv);

/* Connects; prints why not. CTL_OK, CTL_NO_DAEMON or CTL_FAILED. */
enum ctl_exit ctl_connect(struct ctl *ctl);

/* The same without a word. */
enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error);

#endif
