/* System calls of executors.
 *
 * The lists name what is refused, since what a driver calls differs from version to version. Where the calls of a
 * driver have been measured, lists of those take their place: then OTHERWISE is SCMP_ACT_ERRNO(EPERM) and LISTED is
 * SCMP_ACT_ALLOW.
 *
 * Rules look at 64 bits of an argument, the kernel often at 32. So a rule refuses all that is not exactly the value
 * allowed, or masks. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/confine.h"
#include "sandbox/calls.h"

#define OTHERWISE SCMP_ACT_ALLOW
#define LISTED    SCMP_ACT_ERRNO(EPERM)

/* Newer calls, which libseccomp's headers may not have. Their numbers are the same on all architectures. */
enum {
    NUMBER_PROCESS_MADVISE = 440,
    NUMBER_MOUNT_SETATTR = 442,
    NUMBER_QUOTACTL_FD = 443,
    NUMBER_PROCESS_MRELEASE = 448,
    NUMBER_FCHMODAT2 = 452,
    NUMBER_SETXATTRAT = 463,
    NUMBER_REMOVEXATTRAT = 466,
    NUMBER_OPEN_TREE_ATTR = 467,
    NUMBER_FILE_SETATTR = 469,
};

static const int always[] = {
    /* Other processes. */
    SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(pidfd_open),
    SCMP_SYS(pidfd_getfd), SCMP_SYS(pidfd_send_signal), SCMP_SYS(tkill), SCMP_SYS(migrate_pages),
    NUMBER_PROCESS_MADVISE, NUMBER_PROCESS_MRELEASE,
    /* New processes and namespaces; clone() is below. */
    SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(unshare), SCMP_SYS(setns),
    /* Mounts. */
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(move_mount),
    SCMP_SYS(open_tree), SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick),
    NUMBER_MOUNT_SETATTR, NUMBER_OPEN_TREE_ATTR,
    /* Changes to files by name, which Landlock does not know. */
    SCMP_SYS(chmod), SCMP_SYS(fchmodat), SCMP_SYS(chown), SCMP_SYS(lchown), SCMP_SYS(fchownat), SCMP_SYS(truncate),
    SCMP_SYS(utime), SCMP_SYS(utimes), SCMP_SYS(futimesat), SCMP_SYS(utimensat), SCMP_SYS(setxattr),
    SCMP_SYS(lsetxattr), SCMP_SYS(removexattr), SCMP_SYS(lremovexattr), NUMBER_FCHMODAT2, NUMBER_SETXATTRAT,
    NUMBER_REMOVEXATTRAT, NUMBER_FILE_SETATTR,
    /* Queues by name; watching files by name. */
    SCMP_SYS(mq_open), SCMP_SYS(mq_unlink), SCMP_SYS(inotify_add_watch), SCMP_SYS(fanotify_init),
    SCMP_SYS(fanotify_mark),
    /* Parts of the kernel that drivers do not need. io_uring makes calls that no filter sees. */
    SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(perf_event_open),
    SCMP_SYS(bpf), SCMP_SYS(userfaultfd), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
    SCMP_SYS(name_to_handle_at), SCMP_SYS(open_by_handle_at), SCMP_SYS(lookup_dcookie), SCMP_SYS(syslog),
    SCMP_SYS(vhangup), SCMP_SYS(acct), SCMP_SYS(quotactl), NUMBER_QUOTACTL_FD, SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(reboot),
    SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex), SCMP_SYS(sethostname), SCMP_SYS(setdomainname), SCMP_SYS(iopl), SCMP_SYS(ioperm)};

/* Shared memory and semaphores of System V: those of its user's other programs. */
static const int without_mps[] = {SCMP_SYS(shmget), SCMP_SYS(shmat),  SCMP_SYS(shmctl),    SCMP_SYS(semget),
                                  SCMP_SYS(semop),  SCMP_SYS(semctl), SCMP_SYS(msgget),    SCMP_SYS(msgsnd),
                                  SCMP_SYS(msgrcv), SCMP_SYS(msgctl), SCMP_SYS(semtimedop)};

static const int sockets[] = {SCMP_SYS(socket), SCMP_SYS(connect), SCMP_SYS(bind),
                              SCMP_SYS(listen), SCMP_SYS(accept),  SCMP_SYS(accept4)};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Their first argument is a process, or a thread: 0 is the one that calls. */
static const int with_itself_first[] = {SCMP_SYS(prlimit64),      SCMP_SYS(sched_setaffinity),
                                        SCMP_SYS(sched_setparam), SCMP_SYS(sched_setscheduler),
                                        SCMP_SYS(sched_setattr),  SCMP_SYS(move_pages)};
/* Their first argument is a process. */
static const int with_own_process_first[] = {SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo),
                                             SCMP_SYS(kcmp)};

/* Calls that have processes as arguments: with none but itself. */
static int refuse_processes(scmp_filter_ctx filter)
{
    const scmp_datum_t self = (scmp_datum_t)getpid();
    int r = 0;

    for (size_t i = 0; r == 0 && i < COUNT(with_itself_first); i++)
        r = seccomp_rule_add(filter, LISTED, with_itself_first[i], 1, SCMP_A0(SCMP_CMP_NE, 0));
    for (size_t i = 0; r == 0 && i < COUNT(with_own_process_first); i++)
        r = seccomp_rule_add(filter, LISTED, with_own_process_first[i], 1, SCMP_A0(SCMP_CMP_NE, self));
    /* Whether two descriptors of its own are one file, as of an exported pool. */
    if (r == 0)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(kcmp), 1, SCMP_A1(SCMP_CMP_NE, self));
    /* Signal 0 only asks whether a process is there, as a driver may about one that shares memory. */
    if (r == 0)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(kill), 2, SCMP_A0(SCMP_CMP_NE, self), SCMP_A1(SCMP_CMP_NE, 0));
    return r;
}

static int refuse_priorities(scmp_filter_ctx filter)
{
    enum { OF_PROCESS = 1 /* IOPRIO_WHO_PROCESS */ };
    int r = seccomp_rule_add(filter, LISTED, SCMP_SYS(setpriority), 1, SCMP_A0(SCMP_CMP_NE, PRIO_PROCESS));

    if (r == 0)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(setpriority), 1, SCMP_A1(SCMP_CMP_NE, 0));
    if (r == 0)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(ioprio_set), 1, SCMP_A0(SCMP_CMP_NE, OF_PROCESS));
    return r ? r : seccomp_rule_add(filter, LISTED, SCMP_SYS(ioprio_set), 1, SCMP_A1(SCMP_CMP_NE, 0));
}

/* Threads only. Of clone3() a filter sees no flags: the C library takes clone() where the kernel does not have it. */
static int refuse_forks(scmp_filter_ctx filter)
{
    int r = seccomp_rule_add(filter, LISTED, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));

    return r ? r : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
}

/* Signals to others when a file is ready, bytes typed into a terminal. */
static int refuse_controls(scmp_filter_ctx filter)
{
    static const unsigned of_files[] = {F_SETOWN, F_SETOWN_EX},
                          of_devices[] = {FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX};
    int r = 0;

    for (size_t i = 0; r == 0 && i < COUNT(of_files); i++)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(fcntl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, of_files[i]));
    for (size_t i = 0; r == 0 && i < COUNT(of_devices); i++)
        r = seccomp_rule_add(filter, LISTED, SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, of_devices[i]));
    return r;
}

int confine_calls(bool mps, struct error *e)
{
    scmp_filter_ctx filter = calls_new(OTHERWISE);
    int r = 0;

    if (filter) {
        r = calls_add(filter, LISTED, always, COUNT(always));
        if (r == 0 && !mps)
            r = calls_add(filter, LISTED, without_mps, COUNT(without_mps));
        if (r == 0)
            r = refuse_processes(filter);
        if (r == 0)
            r = refuse_priorities(filter);
        if (r == 0)
            r = refuse_forks(filter);
        if (r == 0)
            r = refuse_controls(filter);
        if (r == 0)
            r = seccomp_rule_add(filter, LISTED, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
        if (r == 0) /* the daemon's end is to be the executor's */
            r = seccomp_rule_add(filter, LISTED, SCMP_SYS(prctl), 1,
                                 SCMP_A0(SCMP_CMP_MASKED_EQ, UINT32_MAX, PR_SET_PDEATHSIG));
    }
    return calls_enter(filter, r, true, e);
}

/* A datagram socket of a pair could send to any other's name. */
int confine_sockets(struct error *e)
{
    enum { TYPES = 0xf };
    scmp_filter_ctx filter = calls_new(OTHERWISE);
    int r = 0;

    if (filter) {
        r = calls_add(filter, LISTED, sockets, COUNT(sockets));
        if (r == 0)
            r = seccomp_rule_add(filter, LISTED, SCMP_SYS(socketpair), 1,
                                 SCMP_A1(SCMP_CMP_MASKED_EQ, TYPES, SOCK_DGRAM));
        if (r == 0)
            r = seccomp_rule_add(filter, LISTED, SCMP_SYS(sendto), 1, SCMP_A4(SCMP_CMP_NE, 0));
    }
    return calls_enter(filter, r, true, e);
}
