# For tests that are shell scripts: a daemon of their own in $folder, and what commands end with. Sourced with $kopsd set.
folder=$(mktemp -d)
export KOPS_SOCKET="$folder/kopsd.sock"
failed=0

# start_daemon ARGUMENT...: waits until it answers; it ends with the script.
start_daemon() {
    "$kopsd" --socket "$KOPS_SOCKET" "$@" 2>"$folder/log" &
    daemon=$!
    trap 'kill "$daemon" 2>/dev/null; wait "$daemon"; rm -rf "$folder"' EXIT
    trap 'exit 1' INT TERM
    tries=0
    until [ -S "$KOPS_SOCKET" ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
            cat "$folder/log"
            exit 1
        fi
        sleep 0.05
    done
}

# expect STATUS TEXT COMMAND...: its exit status, and a text in what it prints ("": any).
expect() {
    status=$1 text=$2
    shift 2
    "$@" >"$folder/out" 2>&1
    got=$?
    if [ "$got" != "$status" ] || ! grep -q -e "$text" "$folder/out"; then
        echo "FAILED: $*: status $got, not $status, or no \`$text\` in:"
        cat "$folder/out"
        failed=1
    fi
}
