/* The commands, for main.c's table. */
#ifndef KOPS_CTL_COMMANDS_H
#define KOPS_CTL_COMMANDS_H

#include "base/ctl.h"

ctl_command ctl_ping, ctl_info, ctl_ops, ctl_stats, ctl_clients, ctl_top, ctl_metrics, ctl_drain, ctl_run, ctl_compile,
    ctl_launch, ctl_cache, ctl_trace, ctl_report, ctl_check, ctl_judge, ctl_tune, ctl_tuning;

#endif
