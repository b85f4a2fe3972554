/* kopsctl metrics, between its text and its HTTP server. */
#ifndef KOPS_CTL_METRICS_H
#define KOPS_CTL_METRICS_H

#include "base/ctl.h"

struct metrics_source {
    struct ctl *ctl;
    bool was_away; /* the note was printed already */
    /* Reads the metrics: the daemon's, and `kopsd_up`, which is 0 and alone where no daemon answers (*ret_up). NULL:
     * the daemon cannot tell, or there is no memory; ctl->error says why. The caller frees the text. */
    char *(*read)(struct metrics_source *s, bool *ret_up);
};

/* Serves GET /metrics until a signal ends it, where kopsctl was built with libmicrohttpd. `address` is HOST:PORT. */
enum ctl_exit metrics_listen(struct metrics_source *s, const char *address, bool allow_remote);

#endif
