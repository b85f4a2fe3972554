/* What came of the client's calls: errors and wrong answers are counted, and told where nothing explains them. */
#include <err.h>
#include <stdio.h>

#include "soak.h"

enum { TOLD = 10 }; /* wrong answers that are described */

void complain(struct soak *s, const char *what, const char *why)
{
    if (s->wrong++ < TOLD)
        warnx("%s: %s", what, why);
}

/* What a daemon that ends, or one at its limits, may answer. */
bool explained(enum kops_code code)
{
    switch (code) {
    case KOPS_ERR_CONNECTION_LOST:
    case KOPS_ERR_CONNECT_FAILED:
    case KOPS_ERR_DEVICE_LOST:
    case KOPS_ERR_DEVICE_FAULT:
    case KOPS_ERR_JOB_TIMEOUT:
    case KOPS_ERR_SHUTTING_DOWN:
    case KOPS_ERR_CANCELLED:
    case KOPS_ERR_QUOTA_EXCEEDED:
    case KOPS_ERR_OUT_OF_MEMORY:
    case KOPS_ERR_STALLED:
        return true;
    default:
        return false;
    }
}

static void count_error(struct soak *s, const char *what, const struct kops_error *e)
{
    s->errors[(unsigned)e->code < CODES ? e->code : 0]++;
    if (e->code == KOPS_ERR_TIMEOUT) {
        if (s->lost++ < TOLD)
            warnx("%s: %s", what, e->message);
    } else if (!explained(e->code)) {
        complain(s, what, e->message);
    }
    s->spoiled |= e->code != KOPS_ERR_CANCELLED;
}

void count_failure(struct soak *s, unsigned promise, const char *what, const struct kops_error *e)
{
    const char *why = expect_wrong(&s->since, promise, e);
    char told[700];

    if (why) {
        snprintf(told, sizeof(told), "%s: %s (%s)", kops_code_name(e->code), why, e->message);
        complain(s, what, told);
    }
    count_error(s, what, e);
    s->asks |= e->code == KOPS_ERR_DEVICE_LOST || e->code == KOPS_ERR_DEVICE_FAULT || e->code == KOPS_ERR_JOB_TIMEOUT;
}

void refuse_memory(struct soak *s, const struct kops_error *e)
{
    s->requests++; /* others may have all of a quota for as long as this client goes on */
    count_failure(s, EXPECT_AGAIN | EXPECT_BEGUN_ANEW, "memory", e);
}

void check_error(struct soak *s, const struct kops_error *e)
{
    if (e->code || e->message[0] || e->n_details)
        complain(s, "an error of a call that went well", e->message);
}
