/* The connection of a command. */
#include "complain.h"

/* A person waits for the answer, so kopsctl says in time that the daemon gives none. */
enum { DEFAULT_TIMEOUT_MS = 60000 };

enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error)
{
    struct kops_connect_options options = {.socket = ctl->socket,
                                           .name = "kopsctl " KOPS_VERSION,
                                           .timeout_ms = ctl->timeout_ms ? ctl->timeout_ms : DEFAULT_TIMEOUT_MS,
                                           .connect_timeout_ms = ctl->timeout_ms,
                                           .spin_us = ctl->spin_us,
                                           .reconnect_timeout_ms = ctl->reconnect_ms,
                                           .no_autostart = ctl->no_autostart,
                                           .where = KOPS_WHERE_DAEMON};

    return kops_connect(&options, &ctl->client, error);
}

enum ctl_exit ctl_connect(struct ctl *ctl)
{
    struct kops_error error;
    enum kops_code r = ctl_try_connect(ctl, &error);

    if (!r)
        return CTL_OK;
    ctl_failed("connecting", &error);
    return r == KOPS_ERR_PROTOCOL_MISMATCH ? CTL_FAILED : CTL_NO_DAEMON;
}
