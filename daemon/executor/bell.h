/* A bell: a pair of nonblocking stream sockets, where a byte from one end wakes who waits at the other.
 *
 * An eventfd would be one file description for both ends: an executor could clear O_NONBLOCK there and make the
 * daemon's calls block. The ends of a pair have a description each. Thread: any. */
#ifndef KOPS_EXECUTOR_BELL_H
#define KOPS_EXECUTOR_BELL_H

/* Both ends, close-on-exec, the caller's. Returns 0, or -1 with errno. */
int bell_new(int ret_ends[2]);
/* Wakes the other end. A bell that is full wakes it anyway. */
void bell_ring(int end);
/* Takes what the other end has written, a bounded amount: the rest keeps the descriptor readable. */
void bell_silence(int end);

#endif
