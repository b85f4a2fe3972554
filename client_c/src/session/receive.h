/* The receiving half of a session, waiting for replies, and the end of a connection. Lock held; functions that wait
 * drop it meanwhile. */
#ifndef KOPS_CLIENT_RECEIVE_H
#define KOPS_CLIENT_RECEIVE_H

#include "client.h"

/* Waits for the reply. False: the deadline passed. */
bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline);

/* The outcome of a CALL_DONE; gives the call back. */
enum kops_code session_finish(struct kops_client *c, struct call *call, struct kops_error *e);

/* Gives a call up: its reply will be dropped. */
void session_abandon(struct kops_client *c, struct call *call);

/* Receives until something came, or lets the thread that receives do it. */
void session_progress(struct kops_client *c, uint64_t deadline);

/* Reads the replies that have arrived, without waiting. */
void session_poll(struct kops_client *c);

/* Reads the replies in the ring, without a system call. */
void session_drain(struct kops_client *c);

/* Waits for a change that another thread makes. */
void session_sleep(struct kops_client *c, uint64_t deadline);

/* Closes a lost connection once no thread is in a system call on it. */
void session_close_lost(struct kops_client *c);

/* The connection is over, for that reason: every call ends with it. */
void session_lost(struct kops_client *c, enum kops_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
