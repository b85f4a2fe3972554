/* Shared by the helper's files. */
#ifndef KOPS_REMOTE_FETCH_INTERNAL_H
#define KOPS_REMOTE_FETCH_INTERNAL_H

#include "remote/curl.h"
#include "remote/fetch.h"
#include "remote/wire.h"
#include "util/list.h"

enum { FETCH_TRANSFERS = 64, FETCH_CONNECTIONS = 16 };

struct fetch {
    struct remote_setup setup;
    struct curl_functions curl;
    curl_handle multi;
    struct list transfers;
    unsigned n;
    bool no_host;                    /* the host's name was not found: another process may know better, see fetch.c */
    char lacking[ERROR_MESSAGE_MAX]; /* what the sandbox does not have; "": nothing */
};

/* fetch_confine.c. Gives up all but what the file header of fetch.h names. `user`: whom root becomes. What the kernel
 * does not have is told in f->lacking. */
int fetch_confine(struct fetch *f, const char *user, struct error *e);

/* fetch_transfer.c. Begins an order; `fd` is taken in every case. */
void fetch_begin(struct fetch *f, const struct remote_order *order, int fd);
/* Answers for those that have ended. */
void fetch_finish(struct fetch *f);

#endif
