# shellcheck shell=sh
# Clean Debian roots for tests, to be sourced.
#
# alone() comes first in a script that mounts or starts anything in a root: mounts and processes then end with the script,
# however it ends, and nobody outside it sees them. So a root is never removed through a live mount.

skip() {
    echo "skipped: $*"
    exit 77
}

# alone "$0" "$@": starts the script anew in mount and process namespaces of its own, unless it is there already.
alone() {
    [ "${KOPS_ALONE:-}" = yes ] && return
    [ "$(id -u)" = 0 ] || skip "a clean root takes root"
    unshare --mount --pid --fork true 2>/dev/null || skip "unshare cannot make mount and process namespaces here"
    KOPS_ALONE=yes exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$@"
}

# in_root ROOT COMMAND…: with an environment of its own, but for proxies.
in_root() {
    in_root_path=$1
    shift
    chroot "$in_root_path" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} "$@"
}

# What programs expect of a machine: they see it until the script ends.
mount_system() {
    mount -t proc proc "$1/proc"
    mount -t sysfs -o ro sysfs "$1/sys"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
    mkdir -p "$1/dev/shm"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
}

remove_root() { rm -rf --one-file-system "$1"; }

# Where this machine gets Debian from, or nothing: debootstrap knows a mirror itself.
debian_mirror() {
    if [ -n "${KOPS_DEBIAN_MIRROR:-}" ]; then
        echo "$KOPS_DEBIAN_MIRROR"
    elif command -v apt-get >/dev/null; then
        # shellcheck disable=SC2016 # apt's own names
        apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            sed -n 's/^bookworm //p' | head -n 1
    fi
}

# new_root DIRECTORY PACKAGE,PACKAGE… [RELEASE]: a clean bookworm, or another release, with these; the log is beside it.
new_root() {
    command -v debootstrap >/dev/null || skip "there is no debootstrap"
    remove_root "$1"
    mkdir -p "$1"
    # shellcheck disable=SC2046 # one word or none
    debootstrap --variant=minbase --include="$2" "${3:-bookworm}" "$1" $(debian_mirror) >"$1.log" 2>&1 ||
        { tail -n 5 "$1.log"; skip "debootstrap failed (no network?); see $1.log"; }
    # What dpkg writes need not survive a crash here.
    echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/unsafe-io"
    if command -v apt-config >/dev/null; then
        apt-config dump | grep -i '^Acquire::http.*::proxy' >"$1/etc/apt/apt.conf.d/99proxy" || true
    fi
}

# copy_root FROM TO
copy_root() {
    remove_root "$2"
    cp -a --reflink=auto "$1" "$2"
}
